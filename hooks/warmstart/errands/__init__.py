"""Errands of a node, done: one loop, and the kinds that register (docs/architecture.md, Errands)."""
