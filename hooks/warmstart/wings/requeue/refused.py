"""Requeue a job whose image is not there in time, from its prolog (`on_error.image: requeue`).

Loaded only by a prolog that has failed to get an image. Bounded, and never a fault of the node: whatever goes wrong is
a reason for which the job is not requeued, and then it fails with its verdict. The prolog ends with 0 in both cases:
with 1 the node would drain although the job was requeued (seen with 22.05 and 25.11).

Only the job's first node asks. slurmctld itself refuses jobs that are no batch jobs, and those that were submitted with
--no-requeue. For a task of an array `scontrol requeue JOBID` can requeue all tasks, and a prolog is not told that its
job is one. The controller's spec tells; where there is none, slurmctld is asked (docs/adr/0020).
"""

from __future__ import annotations

import os
import re
from typing import NamedTuple

from warmstart.entry.hook import Hook
from warmstart.errors import ResourceError, StoreError, WarmstartError
from warmstart.host.deadline import Deadline
from warmstart.images.store import requeued
from warmstart.images.store.client import ImageStoreClient
from warmstart.images.store.requeued import RequeuedJob
from warmstart.runner import Refused
from warmstart.slurm import commands
from warmstart.slurm.facts import Access
from warmstart.slurm.slurmctld import LookUpFailed, Slurmctld

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


def requeue(hook: Hook, failure: Refused, end: Deadline) -> Requeued:
    """Requeue the hook's job before the prolog has to end. Raises `NotRequeued`."""
    deadline = end.within(SECONDS)
    access = Access(hook.policy.paths.scontrol, os.environ.get("SLURM_CONF", ""))
    try:
        name = _name(hook, access, deadline)
        times = _count(hook, name, failure, deadline)
    except NotRequeued:
        raise
    except (WarmstartError, OSError) as error:
        raise NotRequeued(problem=str(error)) from error
    if not times:
        raise NotRequeued(problem=f"it was requeued {hook.policy.images.requeues} times already (images.requeues)")
    if problem := commands.requeue(access, name, deadline):
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
    job, keys = hook.job, hook.policy.slurmctld
    if keys is not None:
        from warmstart.slurm import spec

        try:
            path = spec.path_of(keys.spec_directory, job.cluster, job.id)
            written = hook.store.worker.look(deadline.within(keys.deadline), spec.read, path, keys.user.uid)
            array = spec.informed(job, path, written).array
        except StoreError:  # no spec of this run
            array = None
        if array is not None:
            return array
    facts = Slurmctld(access).job(job.id, deadline)
    if facts is None:
        raise LookUpFailed(what=f"job {job.id}", problem="it has gone")
    return facts.array


def _count(hook: Hook, name: str, failure: Refused, deadline: Deadline) -> int:
    cause = failure.__cause__
    image = str(cause.fields.get("image", "")) if isinstance(cause, WarmstartError) else ""
    job = hook.job
    known = RequeuedJob(job.cluster, job.view_id, name, job.uid, job.restarts, image, os.uname().machine)
    store = ImageStoreClient(hook.store.worker, hook.policy.paths.store)
    return store.run(deadline, requeued.count, known, hook.policy.images.requeues, f"{job.node}-{hook.run_id}")
