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
from warmstart.audit.log import Log
from warmstart.errors import PolicyError, WarmstartError
from warmstart.host.deadline import Deadline, after
from warmstart.host.identity import Identity
from warmstart.job import Job, from_environment
from warmstart.paths import Installation
from warmstart.policy.current import CurrentPolicy, current_policy
from warmstart.policy.keys import Policy
from warmstart.wings.specs import keys
from warmstart.wings.specs.keys import Keys
from warmstart.wings.specs.stored import SpecUnusable, path_of


class Controller(Installation):
    """Paths of slurmctld's hooks on the controller: the same policy, and a directory owned by SlurmUser."""

    @property
    def own(self) -> str:
        """SlurmUser's directory, 0700, created by an administrator. Without it each hook compiles the policy.

        It is outside `var`, because root trusts everything in `var`.
        """
        return f"{self.var}-slurmctld"

    @property
    def compiled_policy(self) -> str:
        """The compiled policy of SlurmUser, which cannot read root's."""
        return f"{self.own}/policy.json"

    @property
    def audit(self) -> str:
        """The controller's audit log. SlurmUser cannot write root's."""
        return f"{self.own}/audit.jsonl"


class ControllerRun(NamedTuple):
    """One run of one of the two hooks."""

    job: Job
    policy: Policy
    keys: Keys
    path: str  # of the job's spec
    audit: Log
    slurm: Identity  # SlurmUser
    deadline: Deadline  # of the whole run
    libraries: str  # where pyslurm may be


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
    current = _current(installation)
    syslog = not isinstance(current, PolicyError) and current.policy.audit.syslog
    log = Log(installation.audit, {**job.as_audit(), "hook": name, "run_id": os.urandom(4).hex()}, syslog=syslog)
    log.begin()
    outcome = "failed"
    try:
        _work(installation, job, log, current, work)
        outcome = "ok"
    except PolicyError as error:
        log.emit(events.POLICY_REJECTED, error=error.as_audit(), in_force=None)
        log.failed(error, "policy")
    except WarmstartError as error:
        log.failed(error, "spec")
    except Exception:  # noqa: BLE001 - a bug: audited, never a status
        outcome = "crashed"
        log.say(traceback=_traceback())
    took = round((time.monotonic() - started) * 1000, 3)
    log.finish(outcome=outcome, status=0, duration_ms=took)


def _current(installation: Controller) -> CurrentPolicy | PolicyError:
    try:
        return current_policy(installation, keep=True)
    except PolicyError as error:
        return error


def _work(
    installation: Controller,
    job: Job,
    log: Log,
    current: CurrentPolicy | PolicyError,
    work: Callable[[ControllerRun], None],
) -> None:
    if isinstance(current, PolicyError):
        raise current
    if current.problem is not None:
        log.emit(events.POLICY_REJECTED, error=current.problem.as_audit(), in_force="the last good one")
    found = keys.of(current.policy)
    if found is None:
        return
    path = path_of(found.directory, job.cluster, job.id)
    slurm, libraries = _slurm_user(found.user, path), installation.slurm_libraries
    work(ControllerRun(job, current.policy, found, path, log, slurm, after(found.deadline), libraries))


def _slurm_user(user: Identity, path: str) -> Identity:
    if os.geteuid() not in (0, user.uid):
        raise SpecUnusable(path=path, problem=f"this hook runs as uid {os.geteuid()}, not as {user.name}")
    return user


def _traceback() -> str:
    import traceback

    return traceback.format_exc()
