"""Query slurmctld through pyslurm. The only module that imports it. Runs in a child of its own.

Names and types as in pyslurm 25.11.2: `Job.load(int) -> Job` (pyslurm/core/job/job.pyx), `slurmctld.Config.load() ->
Config` (pyslurm/core/slurmctld/config.pyx), and `RPCError.errno` (pyslurm/core/error.pyx). Importing the package calls
slurm_init(), which reads SLURM_CONF.
`tests/slurm/wings/specs/pyslurm_real.py` checks them against a running controller of that release.
"""

from __future__ import annotations

import errno
import os
import sys
from importlib import metadata
from types import ModuleType
from typing import Protocol

from warmstart.slurm.facts import JobFacts

INVALID_JOB_ID = 2017  # ESLURM_INVALID_JOB_ID (slurm/slurm_errno.h)


class _Job(Protocol):
    """The attributes of `pyslurm.Job` that warmstart reads."""

    id: int
    state: str
    qos: str | None
    array_id: int | None
    array_task_id: int | None
    array_tasks_waiting: str | None
    eligible_time: int | None


def release(libraries: str) -> str:
    """Return the Slurm release (`25.11`) that the pyslurm in the directory `libraries` is built for; "" without one."""
    for distribution in metadata.distributions(name="pyslurm", path=[libraries]):
        return ".".join(distribution.version.split(".")[:2])
    return ""


def loads(libraries: str, slurm_conf: str) -> bool:
    """Return whether pyslurm can be loaded: libslurm is there, and of its release."""
    try:
        _load(libraries, slurm_conf)
    except ImportError:
        return False
    return True


def job(libraries: str, slurm_conf: str, job_id: int) -> JobFacts | None:
    """Return a job; None if slurmctld does not know it any more. Raises `OSError` with Slurm's message."""
    pyslurm = _load(libraries, slurm_conf)
    try:
        # For an array's own id slurmctld describes all tasks, and pyslurm returns the first of them.
        known = pyslurm.Job.load(job_id)
    except pyslurm.RPCError as error:
        if error.errno == INVALID_JOB_ID:
            return None
        raise OSError(errno.EIO, str(error)) from error
    if known.id != job_id:
        raise OSError(errno.ESRCH, f"slurmctld answered about job {known.id}")
    return _facts(known)


def enforced(libraries: str, slurm_conf: str) -> list[str]:
    """Return AccountingStorageEnforce, lower case, [] for none. Raises `OSError` with Slurm's message."""
    pyslurm = _load(libraries, slurm_conf)
    try:
        config = pyslurm.slurmctld.Config.load()
    except pyslurm.RPCError as error:
        raise OSError(errno.EIO, str(error)) from error
    return [word.lower() for word in config.accounting_storage_enforce]


def _load(libraries: str, slurm_conf: str) -> ModuleType:
    if libraries not in sys.path:
        sys.path.append(libraries)
    if slurm_conf:
        os.environ["SLURM_CONF"] = slurm_conf
    import pyslurm  # type: ignore[import-not-found,import-untyped,unused-ignore]

    module: ModuleType = pyslurm
    return module


def _facts(job: _Job) -> JobFacts:
    # pyslurm takes the task number 0 for none (seen with 25.11.2). Only a task of an array has an array's id.
    task = job.array_task_id or job.array_tasks_waiting or 0
    return JobFacts(
        job_id=job.id,
        state=job.state,
        qos=job.qos or "",
        array=f"{job.array_id}_{task}" if job.array_id else "",
        eligible=job.eligible_time or 0,
    )
