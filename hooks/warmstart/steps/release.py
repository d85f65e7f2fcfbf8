"""Step `release`: end the run after its job (`run_end`)."""

from __future__ import annotations

from warmstart import run_end
from warmstart.lean import NamedTuple
from warmstart.run_end import Ending
from warmstart.steps.contract import Context, Outcome

NAME = run_end.STEP


class Options(NamedTuple):
    """No options: everything is in the record."""


def run(context: Context, options: Options) -> Outcome:  # noqa: ARG001 - the shape of a step
    """Remove workspace, view and record, and take down what the run has told its other nodes."""
    record = context.record
    ending = Ending(context.policy, context.paths, record, context.audit, context.store)
    failures = run_end.release(ending, context.deadline)
    if record.died and any(seeded.number for one in record.each() for seeded in one.seeded.values()):
        context.audit.say(died_ms=round((record.ended - record.began) * 1000, 3))
    return Outcome("changed", degraded=failures)
