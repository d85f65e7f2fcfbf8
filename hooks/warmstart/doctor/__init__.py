"""Checks of `warmstart doctor`, one module per group. They change nothing of what they check."""
