"""Imports for all, in the background. Runs as root."""
