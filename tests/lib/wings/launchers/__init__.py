"""Tests of the wing `launchers`."""
