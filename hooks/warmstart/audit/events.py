"""The event catalogue: every value of an audit line's `event`.

Names are `noun.verb`. docs/reference/audit.md documents them; a test compares this module with that page.
"""

from __future__ import annotations

from warmstart.lean import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import NewType

    Event = NewType("Event", str)
else:
    Event = str

HOOK_STARTED = Event("hook.started")
HOOK_FINISHED = Event("hook.finished")
HARVEST_FINISHED = Event("harvest.finished")
NODE_DRAINED = Event("node.drained")
POLICY_REJECTED = Event("policy.rejected")
RECORD_DAMAGED = Event("record.damaged")
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
BUNDLE_DROPPED = Event("bundle.dropped")
BUNDLE_COMPACTED = Event("bundle.compacted")
BUNDLE_REMOVED = Event("bundle.removed")
BUNDLE_QUARANTINED = Event("bundle.quarantined")
ENTRY_PROMOTED = Event("entry.promoted")
STORE_SWEPT = Event("store.swept")
RUN_ABANDONED = Event("run.abandoned")

# What a job's own user may read of a hook's last line: nothing of the node, of the policy, or of other users' jobs.
SHOWN_TO_JOB = frozenset(
    {
        "outcome", "duration_ms", "partition", "account", "head", "asked", "excluded", "granted", "of", "facts",
        "steps", "images", "caches", "failures", "remarks", "told", "died_ms", "look", "at_end",
    }
)  # fmt: skip
