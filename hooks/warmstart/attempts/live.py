"""Harvest jobs that run (`harvest.live`). A timer starts the program; nothing begins where no run is due."""

from __future__ import annotations

import time
from contextlib import suppress

from warmstart.attempts.endings import logged
from warmstart.harvest import live
from warmstart.harvest.live import LIVE
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir, try_flock
from warmstart.policy.keys import Policy
from warmstart.profiles import registry
from warmstart.profiles.contract import FILES
from warmstart.queue import DONE, LATER, Asker, Item, Outcome, Queue
from warmstart.run import state
from warmstart.run.state import Caches, Run, RunUnreadable
from warmstart.session import Session
from warmstart.steps.contract import Context

KIND = LIVE
HARVEST_S = 600.0  # for one attempt at one job; the next one does the rest
LONGEST_S = 43_200.0  # between two harvests of a job
SETTLING = 0.1  # of `harvest.while_running`: what an entry must not have changed for


def attempt(session: Session, item: Item) -> Outcome:
    """Harvest one run, if it is still there, and put it off until it has run for twice as long."""
    queue, first_s, now = Queue(session.paths, KIND), session.policy.harvest.while_running, time.time()
    run = _run(session, item)
    if run is None or first_s is None or live.why_not(session.policy, run):
        return DONE
    with suppress(FileNotFoundError), opened_dir(run.directory) as fd:
        if try_flock(fd) and queue.find(item.key):  # whoever ends the run drops the item, then ends who has the lock
            due = int(now + min(max(now - run.began, first_s), LONGEST_S))
            queue.put(item._replace(due=due), Asker.of(run))
            audit = session.audit.for_job(**run.job_labels)
            audit.say(look=due)
            context = Context(session.policy, session.paths, run, audit, after(HARVEST_S), session.store)
            logged(session, context, int((now - SETTLING * first_s) * 1e9))
        return LATER
    return DONE


def chosen(policy: Policy, run: Run) -> Run:
    """Return a run with what is harvested of it while it runs as what is left.

    Left out are single files that are rewritten, declared files, and what counts only after success.
    """

    def names(caches: Caches) -> list[str]:
        known = {*registry.names(policy.profiles)} - {FILES}
        found = [registry.get(name, policy.profiles) for name in caches.seeded if name in known]
        return [profile.name for profile in found if not profile.lock and not profile.only_successful]

    return run.with_caches({caches.key: caches._replace(left=names(caches)) for caches in run.caches})


def _run(session: Session, item: Item) -> Run | None:
    """Return a run with what is to be harvested of it while it runs, None of any other."""
    with suppress(RunUnreadable, ValueError):
        run = state.load(session.paths.state, int(item.key.partition(".")[0]))
        if run and run.live and run.name == item.key:
            return chosen(session.policy, run)
    return None
