"""Harvest jobs that run (`harvest.live`). A timer starts the program; nothing begins where no run is due."""

from __future__ import annotations

import time
from contextlib import suppress

from warmstart.attempts.endings import PART_S, logged
from warmstart.harvest import live
from warmstart.harvest.live import LIVE, Watched
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir, try_flock
from warmstart.queue import DONE, LATER, Item, Outcome, Queue
from warmstart.run import state
from warmstart.run.state import Run, RunUnreadable
from warmstart.session import Session
from warmstart.steps.contract import Context
from warmstart.steps.harvest import Limits

KIND = LIVE
HARVEST_S = 600.0  # for one attempt at one job; the next one does the rest


def attempt(session: Session, item: Item) -> Outcome:
    """Harvest one run, if it is still there, and put it off until it has run for twice as long."""
    queue, first_s, now = Queue(session.paths, KIND), session.policy.harvest.while_running, time.time()
    run = _run(session, item)
    if run is None or first_s is None or live.why_not(session.policy, run):
        return DONE
    with suppress(FileNotFoundError), opened_dir(run.directory) as fd:
        if try_flock(fd) and queue.find(item.key):  # whoever ends the run drops the item, then ends who has the lock
            due = live.next_due(run, first_s)
            queue.put(item._replace(due=due), Watched(run.directory))
            audit = session.audit.for_job(**run.job_labels)
            audit.say(look=due)
            context = Context(session.policy, session.paths, run, audit, after(HARVEST_S), session.store)
            limits = Limits(
                session.policy.harvest.max_size, context.deadline, PART_S, int((now - live.SETTLING * first_s) * 1e9)
            )
            live.note(session.paths, run, logged(session, context, limits).bundles)
        return LATER
    return DONE


def _run(session: Session, item: Item) -> Run | None:
    """Return a run with what is to be harvested of it while it runs, None of any other."""
    with suppress(RunUnreadable, ValueError):
        run = state.load(session.paths.state, int(item.key.partition(".")[0]))
        if run and run.live and run.name == item.key:
            return live.chosen(session.policy, run)
    return None
