"""The event catalogue: every name that an audit line's `event` can have, listed in docs/audit.md.

Events are `noun.verb`. A test compares this module with that page.
"""

from __future__ import annotations

from typing import NewType

Event = NewType("Event", str)

HOOK_STARTED = Event("hook.started")
HOOK_FINISHED = Event("hook.finished")
HOOK_CRASHED = Event("hook.crashed")
STEP_FINISHED = Event("step.finished")
STEP_FAILED = Event("step.failed")
JOB_REFUSED = Event("job.refused")
NODE_DRAINED = Event("node.drained")
POLICY_REJECTED = Event("policy.rejected")
RUN_SUPERSEDED = Event("run.superseded")
RECORD_DAMAGED = Event("record.damaged")
RUN_UNKNOWN = Event("run.unknown")
IMAGE_REUSED = Event("image.reused")
IMAGE_WAITED = Event("image.waited")
IMAGE_IMPORTED = Event("image.imported")
IMAGE_QUARANTINED = Event("image.quarantined")
CACHE_SEEDED = Event("cache.seeded")
CACHE_HARVESTED = Event("cache.harvested")
ENTRY_REJECTED = Event("entry.rejected")
BUNDLE_LEFT_OUT = Event("bundle.left-out")
BUNDLE_REFUSED = Event("bundle.refused")
BUNDLE_PUBLISHED = Event("bundle.published")
JOURNAL_DAMAGED = Event("journal.damaged")
