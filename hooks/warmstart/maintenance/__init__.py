"""Maintenance of a node and of the store, and the session that both run in. Runs as root."""
