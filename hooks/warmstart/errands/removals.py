"""Remove runs of which a job left more than its epilog could remove. Also while warmstart is off."""

from __future__ import annotations

from warmstart import run_end
from warmstart.errands.loop import DONE, LATER, MORE, Outcome, Turn, Work
from warmstart.harvest import deferred
from warmstart.harvest.deferred import REMOVALS
from warmstart.host.deadline import after

SLICE_S = 10.0  # for removing, before another user's run has its turn
USER_S = 4800.0  # for the runs of one user; the next process, or maintenance, does the rest
PATIENCE_S = 600.0


def remove(turn: Turn) -> Outcome:
    """Remove some of a run. Raises `WorkspaceBusy`."""
    session = turn.session
    item = deferred.read(session.paths, REMOVALS, turn.errand)
    if item is None:
        return LATER
    if item.run is None:  # maintenance finds its tree, which nothing names any more
        return DONE
    return DONE if run_end.finish_removal(session.paths, item.run, after(SLICE_S)) else MORE


WORK = {REMOVALS.name: Work(REMOVALS, remove, owner_s=USER_S, step=run_end.STEP, while_off=True, patience_s=PATIENCE_S)}
