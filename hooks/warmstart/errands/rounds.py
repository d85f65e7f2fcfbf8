"""Harvest jobs that run. A timer starts the program; nothing begins where no run is due (docs/adr/0061).

One job at a time on a node, at idle priority. Whoever ends the run ends this process, and drops the errand first.
"""

from __future__ import annotations

import time
from contextlib import suppress
from functools import partial

from warmstart.errand import Errand, Errands
from warmstart.errands.harvests import logged
from warmstart.errands.loop import DONE, LATER, Outcome, Turn, Work
from warmstart.harvest import live
from warmstart.harvest.live import ROUNDS, Watched
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir, try_flock
from warmstart.repack import rewrite
from warmstart.run import state
from warmstart.run.state import Run, RunUnreadable
from warmstart.session import Session
from warmstart.steps import harvest
from warmstart.steps.contract import Context

ROUND_S = 600.0  # for one job; the next round does the rest


def look(turn: Turn) -> Outcome:
    """Harvest one run, if it is still there, and put it off to its next round."""
    session, errands = turn.session, Errands(turn.session.paths, ROUNDS)
    watched, first_s, began = errands.read(turn.errand, Watched), session.policy.harvest.while_running, time.time()
    run = _run(session, turn.errand)
    if watched is None or run is None or first_s is None or live.why_not(session.policy, run):
        return DONE
    with suppress(FileNotFoundError), opened_dir(run.directory) as fd:
        # Whoever ends the run drops the errand, and then ends who has the lock.
        if not try_flock(fd) or errands.find(turn.errand.key) is None:
            return LATER
        later: Errand | None = live.after_this(turn.errand, first_s)
        if later and run.nodelist:
            later = live.agreed(session.store, run, later, session.store_deadline())
        if later is None:  # the head node comes first
            return LATER
        errands.put(later, watched._replace(looked=began))
        settled_ns = int((began - live.SETTLING * first_s) * 1e9)
        audit = session.audit.for_job(**run.job_labels)
        audit.say(look=later.due)
        context = Context(session.policy, session.paths, run, audit, after(ROUND_S), session.store)
        rules = session.policy.harvest
        number = later.attempts
        options = harvest.Options(ROUND_S, rules.max_size, settled_ns=settled_ns, number=number)
        logged(session, context, partial(harvest.run_live, options=options))
        return LATER
    return DONE


def enter(session: Session) -> bool:
    """Remove what a process left that was ended while it made one bundle of two."""
    rewrite.clear_stage(session.paths.absorbing)
    return True


def _run(session: Session, errand: Errand) -> Run | None:
    """Return a run that is to be harvested while it runs, None of any other."""
    with suppress(RunUnreadable, ValueError):
        run = state.load(session.paths.state, int(errand.key.partition(".")[0]))
        if run and run.live and run.name == errand.key:
            return run
    return None


WORK = {
    ROUNDS.name: Work(
        ROUNDS,
        look,
        lambda session, _: live.due(session.paths),
        enter,
        step=harvest.NAME,
        by_maintenance=False,
        sees=live.due,
    )
}
