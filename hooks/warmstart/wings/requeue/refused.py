"""Requeue a job whose image is not there in time, from its prolog.

Loaded only by a prolog that has failed to get an image, where the policy has `requeue`. Bounded, and never a fault of
the node: whatever goes wrong is a reason for which the job is not requeued, and then it fails with its verdict. The
prolog ends with 0 in both cases: with 1 the node would drain although the job was requeued (seen with 22.05 and 25.11).

Only the job's first node asks. slurmctld itself refuses jobs that are no batch jobs, and those that were submitted with
--no-requeue. For a task of an array `scontrol requeue JOBID` can requeue all tasks, and slurmd does not tell a prolog
that its job is one. Where nothing else informs this node of it, slurmctld is asked (docs/adr/index.md, 20).
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from warmstart.entry.hook import Hook, Refusal, informed
from warmstart.errors import ResourceError, WarmstartError
from warmstart.host.deadline import Deadline
from warmstart.record import Record
from warmstart.runner import Refused
from warmstart.slurm.facts import Access
from warmstart.slurm.slurmctld import LookUpFailed, Slurmctld
from warmstart.wings.requeue import events, scontrol, stored
from warmstart.wings.requeue.client import RequeueClient
from warmstart.wings.requeue.stored import RequeuedJob

KEY = "requeue"  # of the policy
SECONDS = 8.0  # for all of it; `prolog.RESERVE_SECONDS` has room for it
_TASK = re.compile(r"\d{1,10}_\d{1,10}")


class NotRequeued(ResourceError):
    """A job whose image is missing cannot be requeued, or not once more."""

    code = "job-not-requeued"
    template = "the job was not requeued: {problem}"
    hint = "submit it again when the image is there"


class Requeued(NamedTuple):
    """A job that was requeued."""

    times: int  # for a missing image, this one included
    name: str  # that scontrol was given


def refused(hook: Hook, record: Record, failure: Refused, end: Deadline) -> Refusal | None:
    """Requeue the job before the prolog has to end, if this is its first node; say what has become of it."""
    if not record.head:
        return None
    most: int = hook.policy.own[KEY]
    try:
        done = _requeue(hook, failure, most, end.within(SECONDS))
    except NotRequeued as problem:
        hook.audit.emit(events.JOB_NOT_REQUEUED, error=problem.as_audit())
        return Refusal(f"{problem}; {problem.hint}")
    hook.audit.emit(events.JOB_REQUEUED, error=failure.as_audit(), name=done.name, times=done.times, most=most)
    return Refusal(f"the job is requeued, {done.times} of at most {most} times", is_spared=True)


def _requeue(hook: Hook, failure: Refused, most: int, deadline: Deadline) -> Requeued:
    """Requeue the hook's job. Raises `NotRequeued`."""
    access = Access(hook.policy.paths.scontrol, os.environ.get("SLURM_CONF", ""))
    try:
        name = _name(hook, access, deadline)
        times = _count(hook, name, failure, most, deadline)
    except NotRequeued:
        raise
    except (WarmstartError, OSError) as error:
        raise NotRequeued(problem=str(error)) from error
    if not times:
        raise NotRequeued(problem=f"it was requeued {most} times already (requeue.times)")
    if problem := scontrol.requeue(access, name, deadline):
        raise NotRequeued(problem=problem)
    return Requeued(times, name)


def _name(hook: Hook, access: Access, deadline: Deadline) -> str:
    """Return the name under which scontrol requeues this job and no other."""
    job = hook.job
    if not job.comment_known or not re.fullmatch(r"[\w-]+", job.cluster, re.ASCII):
        raise NotRequeued(problem="Slurm does not tell its prolog enough about it")
    if job.het_id is not None:
        return str(job.het_id)  # a component cannot be requeued alone
    array = _array(hook, access, deadline)
    if array and not _TASK.fullmatch(array):
        raise NotRequeued(problem=f"{array!a} is not one task of an array")
    return array or str(job.id)


def _array(hook: Hook, access: Access, deadline: Deadline) -> str:
    """Return JOBID_TASKID of a task of an array, "" for another job."""
    job = informed(hook, ("array",), deadline)
    if job.array is not None:
        return job.array
    facts = Slurmctld(access).job(job.id, deadline)
    if facts is None:
        raise LookUpFailed(what=f"job {job.id}", problem="it has gone")
    return facts.array


def _count(hook: Hook, name: str, failure: Refused, most: int, deadline: Deadline) -> int:
    cause = failure.__cause__
    image = str(cause.fields.get("image", "")) if isinstance(cause, WarmstartError) else ""
    job = hook.job
    known = RequeuedJob(job.cluster, job.view_id, name, job.uid, job.restarts, image, os.uname().machine)
    with RequeueClient.of(hook.policy.store_user, hook.policy.paths.store) as store:
        return store.run(deadline, stored.count, known, most, f"{job.node}-{hook.run_id}")
