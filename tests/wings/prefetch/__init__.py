"""Tests of the wing."""
