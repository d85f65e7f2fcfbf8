"""Step `release`: end the run after its job (`run_end`)."""

from __future__ import annotations

from warmstart import run_end
from warmstart.lean import NamedTuple
from warmstart.run_end import Ending
from warmstart.steps.contract import Context, Outcome

NAME = run_end.STEP


class Options(NamedTuple):
    """No options: everything is in the run."""


def run(context: Context, options: Options) -> Outcome:  # noqa: ARG001 - the shape of a step
    """Remove workspace, view and run, and take down what the run has told its other nodes."""
    ending = Ending(context.policy, context.paths, context.run, context.audit, context.store)
    return Outcome(degraded=run_end.release(ending, context.deadline))
