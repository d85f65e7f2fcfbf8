"""Profiles: one module per tool's cache, with its variables, entries and validator."""
