"""Repack: make new bundles of published ones, and one of what the nodes of a run handed in. Runs as root."""
