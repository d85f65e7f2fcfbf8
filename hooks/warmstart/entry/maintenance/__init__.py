"""Maintenance: of a node, of the store, and the session that both work in."""
