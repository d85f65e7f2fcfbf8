"""Query slurmctld through pyslurm. The only module that imports it. Runs in a child of its own.

Names and types as in pyslurm 25.11.2: `Job.load(int) -> Job` and `Jobs.load() -> Jobs`, a mapping by id
(pyslurm/core/job/job.pyx), `slurmctld.Config.load() -> Config` (pyslurm/core/slurmctld/config.pyx), and
`RPCError.errno` (pyslurm/core/error.pyx). Importing the package calls slurm_init(), which reads SLURM_CONF.
`tests/wings/specs/integration/test_pyslurm_contract.py` checks them against the released source, and against a running
controller where there is one of that release.
"""

from __future__ import annotations

import errno
import os
import sys
from contextlib import suppress
from importlib import metadata
from types import ModuleType
from typing import Protocol

from warmstart.slurm.facts import PENDING, SCRIPTS, Configuration, JobFacts
from warmstart.slurm.pending import PendingJob, SubmitLine, by_priority, is_bounded, is_stuck

INVALID_JOB_ID = 2017  # ESLURM_INVALID_JOB_ID (slurm/slurm_errno.h)
_ATTRIBUTES = ("prolog", "epilog", "prolog_slurmctld", "epilog_slurmctld")


class _Job(Protocol):
    """The attributes of `pyslurm.Job` that warmstart reads."""

    id: int
    state: str
    state_reason: str | None
    qos: str | None
    array_id: int | None
    array_task_id: int | None
    array_tasks_waiting: str | None
    eligible_time: int | None
    priority: int | None
    user_id: int | None
    group_id: int | None
    cluster: str | None
    partition: str | None
    account: str | None
    constraints: list[str] | None
    name: str | None
    comment: str | None
    submit_line: str | None


def release(libraries: str) -> str:
    """Return the Slurm release (`25.11`) that the pyslurm in the directory `libraries` is built for; "" without one."""
    for distribution in metadata.distributions(name="pyslurm", path=[libraries]):
        return ".".join(distribution.version.split(".")[:2])
    return ""


def jobs(libraries: str, slurm_conf: str, job_ids: list[int]) -> list[JobFacts] | None:
    """Return the jobs that slurmctld knows; None if pyslurm cannot be loaded. Raises `OSError` with Slurm's message."""
    pyslurm = _load(libraries, slurm_conf)
    if pyslurm is None:
        return None
    try:
        if len(job_ids) > 1:
            known = pyslurm.Jobs.load()
            return [_facts(job) for job in known.values() if job.id in job_ids]
        # For an array's own id slurmctld describes all tasks, and pyslurm returns the first of them.
        job = pyslurm.Job.load(job_ids[0])
    except pyslurm.RPCError as error:
        if error.errno == INVALID_JOB_ID:
            return []
        raise OSError(errno.EIO, str(error)) from error
    if job.id != job_ids[0]:
        raise OSError(errno.ESRCH, f"slurmctld answered about job {job.id}")
    return [_facts(job)]


def pending(libraries: str, slurm_conf: str) -> list[PendingJob] | None:
    """Return the pending jobs that are not stuck, by priority; None if pyslurm cannot be loaded.

    Raises `OSError` with Slurm's message.
    """
    pyslurm = _load(libraries, slurm_conf)
    if pyslurm is None:
        return None
    try:
        known = pyslurm.Jobs.load()
    except pyslurm.RPCError as error:
        raise OSError(errno.EIO, str(error)) from error
    prioritized = []
    for job in known.values():
        with suppress(UnicodeDecodeError):  # its owner wrote something else than UTF-8, which pyslurm expects
            if job.state != PENDING or is_stuck(job.priority, job.state_reason or ""):
                continue
            if is_bounded(pending_job := _pending(job)):
                prioritized.append((job.priority or 1, pending_job))
    return by_priority(prioritized)


def configuration(libraries: str, slurm_conf: str) -> Configuration | None:
    """Return slurmctld's settings; None if pyslurm cannot be loaded. Raises `OSError` with Slurm's message."""
    pyslurm = _load(libraries, slurm_conf)
    if pyslurm is None:
        return None
    try:
        config = pyslurm.slurmctld.Config.load()
    except pyslurm.RPCError as error:
        raise OSError(errno.EIO, str(error)) from error
    scripts = {key: list(getattr(config, name) or []) for key, name in zip(SCRIPTS, _ATTRIBUTES, strict=True)}
    return Configuration([word.lower() for word in config.accounting_storage_enforce], scripts)


def _load(libraries: str, slurm_conf: str) -> ModuleType | None:
    if libraries not in sys.path:
        sys.path.append(libraries)
    if slurm_conf:
        os.environ["SLURM_CONF"] = slurm_conf
    try:
        import pyslurm  # type: ignore[import-not-found,import-untyped,unused-ignore]
    except ImportError:  # libslurm is missing, or of another release
        return None
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


def _pending(job: _Job) -> PendingJob:
    pending_job = PendingJob(
        job_id=job.id,
        uid=job.user_id or 0,
        gid=job.group_id or 0,
        cluster=job.cluster or "",
        partition=job.partition or "",
        account=job.account or "",
        qos=job.qos or "",
        constraints=",".join(job.constraints or ()),
        name=job.name or "",
        array=job.array_id or 0,
        comment=job.comment or "",
    )
    return pending_job._replace(**SubmitLine.of(job.submit_line or "")._asdict())
