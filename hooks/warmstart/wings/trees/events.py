"""The wing's events (docs/wings/trees.md)."""

from __future__ import annotations

from warmstart.audit.line import Event

TREE_PACKED = Event("tree.packed")
TREE_PACK_FAILED = Event("tree.pack-failed")
