"""Frame of slurmctld's two hooks. They run as SlurmUser on the controller and always end with 0.

A PrologSlurmctld that fails requeues its job, again and again without limit; one that dies of a signal counts as
successful (prep_slurmctld.c, seen on 22.05). So no error becomes an exit status, and a node never sees a partial spec,
even if a hook is killed.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

from warmstart.audit import events
from warmstart.audit.journal import Journal
from warmstart.errors import PolicyError, WarmstartError
from warmstart.host.deadline import Deadline, after
from warmstart.host.identity import Identity
from warmstart.job import Job, from_environment
from warmstart.paths import Controller
from warmstart.policy.compiled import Policy, Slurmctld
from warmstart.policy.current import current_policy
from warmstart.slurm.client import SlurmClient
from warmstart.slurm.spec import SpecUnusable, path_of


class ControllerRun(NamedTuple):
    """One run of one of the two hooks."""

    job: Job
    policy: Policy
    keys: Slurmctld
    path: str  # of the job's spec
    audit: Journal
    slurm: SlurmClient
    deadline: Deadline  # of the whole run
    pyslurm: str


def run_hook(name: str, prefix: str, work: Callable[[ControllerRun], None]) -> int:
    """Run `work` for the job in the environment; always 0."""
    try:
        os.umask(0o022)
        installation = Controller(prefix)
        if not installation.is_off:
            host = os.uname().nodename.partition(".")[0]  # Slurm sets no SLURMD_NODENAME for these hooks
            job = from_environment({**os.environ, "SLURMD_NODENAME": host})
            _audited(name, installation, job, work)
    except WarmstartError as error:
        print(f"warmstart: {error} ({error.hint})", file=sys.stderr)  # noqa: T201 - with DebugFlags=Script Slurm logs it
    except Exception:  # noqa: BLE001 - a failure would requeue the job for ever
        print(_traceback(), file=sys.stderr)  # noqa: T201 - with DebugFlags=Script Slurm logs it
    return 0


def _audited(name: str, installation: Controller, job: Job, work: Callable[[ControllerRun], None]) -> None:
    started = time.monotonic()
    journal = Journal(installation.journal, {**job.as_audit(), "hook": name, "run_id": os.urandom(4).hex()})
    journal.emit(events.HOOK_STARTED, partition=job.partition, account=job.account)
    outcome = "ok"
    try:
        _work(installation, job, journal, work)
    except PolicyError as error:
        outcome = "failed"
        journal.emit(events.POLICY_REJECTED, error=error.as_audit(), in_force=None)
    except WarmstartError as error:
        outcome = "failed"
        journal.emit(events.SPEC_FAILED, error=error.as_audit())
    except Exception:  # noqa: BLE001 - a bug: audited, never a status
        outcome = "failed"
        journal.emit(events.HOOK_CRASHED, traceback=_traceback())
    took = round((time.monotonic() - started) * 1000, 3)
    journal.finish(outcome=outcome, status=0, duration_ms=took)


def _work(installation: Controller, job: Job, journal: Journal, work: Callable[[ControllerRun], None]) -> None:
    policy, _, _, problem = current_policy(installation, keep=True)
    if problem is not None:
        journal.emit(events.POLICY_REJECTED, error=problem.as_audit(), in_force="the last good one")
    keys = policy.slurmctld
    if keys is None:
        return
    path = path_of(keys.spec_directory, job.cluster, job.id)
    with SlurmClient(_slurm_user(keys.user, path)) as slurm:
        work(ControllerRun(job, policy, keys, path, journal, slurm, after(keys.deadline), installation.pyslurm))


def _slurm_user(user: Identity, path: str) -> Identity:
    if os.geteuid() not in (0, user.uid):
        raise SpecUnusable(path=path, problem=f"this hook runs as uid {os.geteuid()}, not as {user.name}")
    return user


def _traceback() -> str:
    import traceback

    return traceback.format_exc()
