"""Imports of images before the jobs that need them start (docs/wings/prefetch.md)."""
