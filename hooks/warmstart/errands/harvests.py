"""Harvest runs whose epilog ran out of time. Only maintenance does so: nobody starts the program for it."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

from warmstart import run_end
from warmstart.audit.log import Log
from warmstart.errands.loop import DONE, LATER, Outcome, Turn, Work
from warmstart.harvest import deferred
from warmstart.harvest.deferred import HARVESTS
from warmstart.host.deadline import after
from warmstart.run.state import Run
from warmstart.session import Session
from warmstart.steps import harvest
from warmstart.steps.contract import Context
from warmstart.steps.contract import Outcome as StepOutcome

USER_S = 600.0  # for the harvests of one user; the next maintenance does the rest


def finish(turn: Turn) -> Outcome:
    """Harvest one run within its owner's time, and remove it; or drop it."""
    session = turn.session
    item = deferred.read(session.paths, HARVESTS, turn.errand)
    if item is None:
        return LATER
    run = item.run
    drop = partial(run_end.drop_deferred, session.paths, item, deadline=after(run_end.MAINTENANCE_SECONDS))
    if run is None:
        drop(deferred.DAMAGED, session.audit)
    elif item.since < time.time() - deferred.LONGEST_SECONDS:
        drop(deferred.TOO_OLD, session.audit)
    else:
        run = _harvest(session, run, session.audit.for_job(**run.job_labels), turn.left_s)
        if run.left:
            deferred.defer(session.paths, HARVESTS, run, item.since)
            return LATER
        run_end.finish_deferred(session.paths, run, after(run_end.MAINTENANCE_SECONDS))
    return DONE


def _harvest(session: Session, run: Run, audit: Log, seconds: float) -> Run:
    """Harvest one run. Return it with what remains to be done."""
    rules = session.policy.harvest
    options = harvest.Options(seconds, rules.max_size)
    context = Context(session.policy, session.paths, run, audit, after(seconds), session.store)
    outcome = logged(session, context, partial(harvest.run, options=options))
    return outcome.run or run


def logged(session: Session, context: Context, run: Callable[[Context], StepOutcome]) -> StepOutcome:
    """Run a harvest for a job, and write its line."""
    started, how, log = time.monotonic(), "failed", context.audit.bind(step=harvest.NAME)
    try:
        outcome = run(context._replace(audit=log))
        for failure in outcome.degraded:
            log.failed(failure)
        session.failures.extend(outcome.degraded)
        how = "failed" if outcome.degraded else "ok"
        return outcome
    finally:
        took = round((time.monotonic() - started) * 1000, 3)
        context.audit.finish(outcome=how, duration_ms=took, run=context.run.name)


WORK = {HARVESTS.name: Work(HARVESTS, finish, owner_s=USER_S, step=harvest.NAME)}
