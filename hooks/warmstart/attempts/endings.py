"""End runs that their epilogs had no time for: harvest what is left of them, then remove them."""

from __future__ import annotations

import time

from warmstart.ending import waiting
from warmstart.ending.removal import close, remove
from warmstart.ending.waiting import ENDINGS, Waiting
from warmstart.host.deadline import after
from warmstart.queue import DONE, LATER, MORE, Item, Outcome, Queue
from warmstart.run.state import Run, RunUnreadable
from warmstart.session import Session
from warmstart.steps import harvest
from warmstart.steps.contract import Context
from warmstart.steps.harvest import Harvested

KIND = ENDINGS
HARVEST_S = 900.0  # for one attempt at one run
REMOVAL_S = 60.0  # for removing, before another user's run has its turn


def attempt(session: Session, item: Item) -> Outcome:
    """Harvest what is left of a run, or give it up; remove the run if nothing is. Raises `WorkspaceBusy`."""
    queue = Queue(session.paths, KIND)
    for failure in waiting.make_room(session.policy, session.audit, queue):
        session.failed(harvest.NAME, failure)
    try:
        found = waiting.read(queue, item)
    except RunUnreadable:  # it stays for the release that wrote it
        return LATER
    if found is None:
        return DONE
    what, run = found
    run = close(run, after(REMOVAL_S))
    if not what.is_done and not _harvested(session, queue, item, what, run):
        return LATER
    return DONE if remove(run, after(REMOVAL_S)).is_whole else MORE


def _harvested(session: Session, queue: Queue, item: Item, what: Waiting, run: Run) -> bool:
    """Harvest what is left of a run, and write down what still is, or give it up. Return whether nothing is left."""
    is_old = abs(time.time() - what.since) >= waiting.LONGEST_S  # a clock that was set far back ends it, too
    if session.installation.is_off or is_old:
        reason = waiting.OFF if session.installation.is_off else waiting.TOO_OLD
        return waiting.give_up(session.audit, queue, item, (what, run), reason)
    audit = session.audit.for_job(**run.job_labels)
    context = Context(session.policy, session.paths, run, audit, after(HARVEST_S), session.store)
    with waiting.at_work_on(run) as is_ours:
        if not is_ours:
            return False
        done = logged(session, context)
        waiting.put(queue, item, done.run, what.since, is_done=done.is_done)
        return done.is_done


def logged(session: Session, context: Context, settled_ns: int = 0) -> Harvested:
    """Harvest what is left of a run, and write the line of its job. `settled_ns` as in `harvest.harvest`."""
    started, how, log = time.monotonic(), "failed", context.audit.bind(step=harvest.NAME)
    try:
        done = harvest.harvest(context._replace(audit=log), settled_ns)
        for failure in done.degraded:
            log.failed(failure)
        session.failures.extend(done.degraded)
        how = "failed" if done.degraded else "ok"
        return done
    finally:
        took = round((time.monotonic() - started) * 1000, 3)
        context.audit.finish(outcome=how, duration_ms=took, run=context.run.name)
