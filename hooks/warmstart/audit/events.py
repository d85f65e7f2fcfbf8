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
HOOK_CRASHED = Event("hook.crashed")
JOB_PLANNED = Event("job.planned")
STEP_FINISHED = Event("step.finished")
STEP_FAILED = Event("step.failed")
JOB_OBSERVED = Event("job.observed")
JOB_REFUSED = Event("job.refused")
JOB_UNINFORMED = Event("job.uninformed")
NODE_DRAINED = Event("node.drained")
STATE_FULL = Event("state.full")
POLICY_REJECTED = Event("policy.rejected")
TRUST_UNPROVEN = Event("trust.unproven")
RUN_SUPERSEDED = Event("run.superseded")
RECORD_DAMAGED = Event("record.damaged")
IMAGE_REUSED = Event("image.reused")
IMAGE_WAITED = Event("image.waited")
IMAGE_IMPORT_FAILED = Event("image.import-failed")
IMAGE_IMPORT_CANCELLED = Event("image.import-cancelled")
IMAGE_IMPORTED = Event("image.imported")
IMAGE_STALE = Event("image.stale")
IMAGE_DAMAGED = Event("image.damaged")
IMAGE_LOCKLESS = Event("image.lockless")
IMAGE_EVICTED = Event("image.evicted")
IMAGE_UNPACKED = Event("image.unpacked")
IMAGE_UNPACK_FAILED = Event("image.unpack-failed")
IMAGE_TREE_EVICTED = Event("image.tree-evicted")
IMAGE_PINNED = Event("image.pinned")
IMAGE_UNPINNED = Event("image.unpinned")
PROFILE_LEFT_OUT = Event("profile.left-out")
CACHE_SEEDED = Event("cache.seeded")
CACHE_AGREED = Event("cache.agreed")
OVERLAY_FAILED = Event("overlay.failed")
CACHE_HARVESTED = Event("cache.harvested")
HARVEST_LEFT_OUT = Event("harvest.left-out")
HARVEST_DEFERRED = Event("harvest.deferred")
HARVEST_DROPPED = Event("harvest.dropped")
HARVEST_MERGED = Event("harvest.merged")
ENTRY_REJECTED = Event("entry.rejected")
BUNDLE_LEFT_OUT = Event("bundle.left-out")
BUNDLE_REFUSED = Event("bundle.refused")
BUNDLE_HANDED_IN = Event("bundle.handed-in")
BUNDLE_PUBLISHED = Event("bundle.published")
BUNDLE_SPOOLED = Event("bundle.spooled")
BUNDLE_DROPPED = Event("bundle.dropped")
BUNDLE_COMPACTED = Event("bundle.compacted")
BUNDLE_REMOVED = Event("bundle.removed")
BUNDLE_QUARANTINED = Event("bundle.quarantined")
ENTRY_PROMOTED = Event("entry.promoted")
STORE_SWEPT = Event("store.swept")
RUN_ABANDONED = Event("run.abandoned")
JOURNAL_DAMAGED = Event("journal.damaged")

# What a job's own user may read of its hooks: nothing of other users' jobs, of the node, or of the policy.
SHOWN_TO_JOB = frozenset(
    {
        HOOK_STARTED, JOB_PLANNED, JOB_REFUSED, STEP_FINISHED, STEP_FAILED, STATE_FULL,
        RUN_SUPERSEDED, JOB_UNINFORMED,
        IMAGE_REUSED, IMAGE_WAITED, IMAGE_IMPORTED, IMAGE_STALE, IMAGE_LOCKLESS,
        PROFILE_LEFT_OUT,
        CACHE_SEEDED, CACHE_AGREED, OVERLAY_FAILED, BUNDLE_LEFT_OUT, BUNDLE_REFUSED,
        CACHE_HARVESTED, HARVEST_LEFT_OUT, HARVEST_DEFERRED, ENTRY_REJECTED,
        BUNDLE_PUBLISHED, BUNDLE_HANDED_IN, BUNDLE_SPOOLED, BUNDLE_COMPACTED,
    }
)  # fmt: skip
