"""Tests of wings, a folder for each."""
