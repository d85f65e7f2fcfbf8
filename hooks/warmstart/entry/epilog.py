"""Slurm's Epilog: harvest the job's caches, then remove what the prolog made. Runs as root.

Besides the job's id, and how it ended, it trusts only the run's state (docs/architecture.md, rule 8). Without it there
is nothing to do: no prolog ran, or an earlier epilog finished. Both are normal (slurm.conf(5), Epilog).
"""

from __future__ import annotations

import os
import time

from warmstart import view
from warmstart.ending.harvesting import epilog_budget, to_harvest
from warmstart.entry.hook import FAILED, OK, Hook, run_hook
from warmstart.errors import NodeError, WarmstartError
from warmstart.host.deadline import after
from warmstart.lean import Mapping
from warmstart.run import state
from warmstart.run.state import Run

SECONDS_FOR_LOCK = 10.0
REPORT_SECONDS = 2.0
_OUT_OF_MEMORY = 125  # the signal in what slurmstepd says then, SIG_OOM (253), of 22.05 to 26.05
_NODE_FAILED = 1  # what the nodes that are left are told, as it stands


def main(prefix: str) -> int:
    """Run the epilog of the job in the environment. Return the exit status."""
    return run_hook("epilog", prefix, _finish)


def _finish(hook: Hook) -> str:
    """Return the outcome: failed if something that the job made was lost."""
    with state.job_lock(hook.paths.state, hook.job.id, after(SECONDS_FOR_LOCK)):
        run = hook.earlier_run()
        if run is None:
            _end_wings(hook)
            return OK
        return _end(hook, run)


def _end(hook: Hook, run: Run) -> str:
    """End the job's run, and tell its user."""
    from warmstart.ending.release import release

    # slurmd says "nobody" where it does not know the user, as with nss_slurm.
    hook.audit.correct(user=run.user, uid=run.uid)
    told = view.read(hook.paths.view, run.view_id, view.EVENTS) or b""
    ran_s = time.time() - run.began
    context = hook.context(run, after(epilog_budget(hook.policy)))
    ended = release(context, to_harvest(hook.policy, run, os.environ.get("SLURM_CONF", "")))
    if has_died(os.environ, run) and any(seeded.number for caches in run.caches for seeded in caches.seeded.values()):
        hook.audit.say(died_ms=round(ran_s * 1000, 3))
    outcome = FAILED if ended.lost or isinstance(ended.failure, NodeError) else OK
    if hook.policy.maintenance.reports is not None:
        _report(hook, run, told.decode("utf-8", "surrogateescape") + hook.audit.shown(outcome=outcome))
    if isinstance(ended.failure, NodeError):
        raise ended.failure
    return outcome


def _report(hook: Hook, run: Run, text: str) -> None:
    """Leave what the job's user may read of both hooks in the store; it is lost where the store does not take it."""
    from warmstart.store import reports

    name = reports.name_of(run.job_id, hook.run_id, run.node)
    try:
        hook.store.run(after(REPORT_SECONDS), reports.leave, run.uid, name, text, run.head)
    except WarmstartError as error:
        hook.audit.remark(f"the report for the job's user is lost: {error}")


def has_died(environ: Mapping[str, str], run: Run) -> bool:
    """Return whether a job ended badly, as far as Slurm tells.

    The codes are raw wait statuses, of the batch script and the worst of the steps. A time limit, a cancellation and a
    requeue show 0, on each release. Only batch jobs have a stdin: how people leave a shell says nothing.
    """
    codes = [environ.get(name, "") for name in ("SLURM_JOB_EXIT_CODE", "SLURM_JOB_DERIVED_EC")]
    is_requeued = environ.get("SLURM_JOB_RESTART_COUNT", "0") != str(run.restarts)
    if is_requeued or "SLURM_JOB_STDIN" not in environ or not all(code.isdecimal() for code in codes):
        return False
    if any(int(code) == _NODE_FAILED or int(code) & 0x7F == _OUT_OF_MEMORY for code in codes):
        return False
    return any(map(int, codes))


def _end_wings(hook: Hook) -> None:
    """Have wings take down what a prolog held that undid everything else, including the run's state."""
    if not any(known.used and known.end for known in hook.policy.wings):
        return
    from warmstart.ending.release import end_wings  # slow to import

    end_wings(hook.policy, hook.paths, hook.job.id, [], hook.audit)
