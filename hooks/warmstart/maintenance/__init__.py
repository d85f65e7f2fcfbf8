"""Maintenance of a node and of the store. Runs as root."""
