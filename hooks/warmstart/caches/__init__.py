"""Compile caches: what is kept of jobs for later ones."""
