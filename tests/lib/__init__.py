"""Shared by tests: sample values, stand-ins, and sites with real accounts and mounts.

A real cluster is in `tests.lib`.
"""
