"""Step `spool`: publish bundles of earlier jobs that the store had not accepted (docs/architecture.md, rule 2)."""

from __future__ import annotations

from warmstart.audit import events
from warmstart.audit.log import Log
from warmstart.harvest import spool
from warmstart.harvest.spool import Delivered
from warmstart.host.deadline import Deadline
from warmstart.lean import NamedTuple
from warmstart.policy.keys import Maintenance
from warmstart.steps.contract import Context, Outcome
from warmstart.store.client import StoreClient

NAME = "spool"


class Options(NamedTuple):
    """The time limit of the step, in seconds."""

    seconds: float


def run(context: Context, options: Options) -> Outcome:
    """Publish bundles until the time limit. The rest waits for the next epilog or for maintenance."""
    deadline = context.deadline.within(options.seconds)
    done = publish(context.paths.spool, context.store, context.policy.maintenance, context.audit, deadline)
    return Outcome(detail={"bundles": done} if done else {})


def publish(directory: str, store: StoreClient, rules: Maintenance, audit: Log, deadline: Deadline) -> int:
    """Publish a node's spool. Return how many bundles left it. Raises the store's errors."""
    count = 0
    for delivered in spool.deliver(directory, store, rules, deadline):
        count += 1
        _log(audit, delivered)
    return count


def _log(audit: Log, delivered: Delivered) -> None:
    spooled, published = delivered.spooled, delivered.published
    audit = audit.for_job(**delivered.job_labels)
    if delivered.reason or spooled is None:
        audit.emit(events.BUNDLE_DROPPED, run=delivered.run, spooled=delivered.name, reason=delivered.reason)
        return
    entries = len(spooled.draft.entries)
    if spooled.parts and spooled.profile:
        fields: dict[str, object] = {"handed_in": entries}
    elif published and published.bundle:
        fields = {"entries": entries, **published._asdict(), "superseding": len(published.superseding)}
    else:
        return
    audit.put("caches", spooled.profile, namespace=spooled.namespace, scope=spooled.scope, **fields)
    audit.finish(outcome="ok", run=delivered.run)
