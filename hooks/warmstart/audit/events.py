"""Acts that have a line of their own in the audit log. Names are `noun.verb`; docs/reference/audit.md documents them.

All else is part of a last line (`audit.line`). Wings have their own.
"""

from __future__ import annotations

from warmstart.audit.line import Event

NODE_DRAINED = Event("node.drained")
POLICY_REJECTED = Event("policy.rejected")
IMAGE_IMPORT_FAILED = Event("image.import-failed")
IMAGE_IMPORT_CANCELLED = Event("image.import-cancelled")
IMAGE_IMPORTED = Event("image.imported")
IMAGE_DAMAGED = Event("image.damaged")
IMAGE_EVICTED = Event("image.evicted")
IMAGE_UNPACKED = Event("image.unpacked")
IMAGE_UNPACK_FAILED = Event("image.unpack-failed")
IMAGE_TREE_EVICTED = Event("image.tree-evicted")
IMAGE_PINNED = Event("image.pinned")
IMAGE_UNPINNED = Event("image.unpinned")
HARVEST_DROPPED = Event("harvest.dropped")
HARVEST_MERGED = Event("harvest.merged")
BUNDLE_COMPACTED = Event("bundle.compacted")
BUNDLE_REMOVED = Event("bundle.removed")
BUNDLE_DAMAGED = Event("bundle.damaged")
ENTRIES_REMOVED = Event("entries.removed")
ENTRY_PROMOTED = Event("entry.promoted")
STORE_SWEPT = Event("store.swept")
RUN_ABANDONED = Event("run.abandoned")
