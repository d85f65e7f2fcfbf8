"""Step `report`: leave in the store what the job's user may know of this run (`store.reports`).

It comes before `release`, which removes the view with the prolog's part: an epilog that died in between finds it again.
Whatever keeps it from writing is told, and is no failure of the node or the job.
"""

from __future__ import annotations

from warmstart import view
from warmstart.audit import events
from warmstart.lean import NamedTuple
from warmstart.steps.contract import Context, Outcome
from warmstart.store import reports

NAME = "report"


class Options(NamedTuple):
    """The time limit of the step, in seconds."""

    seconds: float


def run(context: Context, options: Options) -> Outcome:
    """Write the report: the events of the job's view, and those of this hook so far."""
    record, audit = context.record, context.audit
    text = view.text(context.paths.view, record, view.EVENTS) + audit.shown_to_job()
    if record.left:  # `release` says so in the audit
        text += audit.line(events.HARVEST_DEFERRED, profiles=record.left).decode()
    name = reports.name_of(record.job_id, record.run_id, record.node)
    deadline = context.deadline.within(options.seconds)
    context.store.run(deadline, reports.leave, record.uid, name, text, record.head)
    return Outcome("changed")
