"""Jobs that were requeued because an image was not there: how often, and what they wait for. Runs as the store's owner.

    images/requeued/                      0700
        CLUSTER.JOBID.json                a job at its last requeue (`RequeuedJob`)
        HASH.JOBID.wait                   empty: the job still waits; HASH is of image, machine and cluster

A requeue gives a job a new submit time (`batch_requeue_fini` in Slurm's src/slurmctld/job_mgr.c; seen with 22.05 and
25.11), so that does not tell one job from another of the same id. Its owner and the number of its restarts do: that
only grows, and a new job begins at 0 (docs/adr/index.md, 20). A job that was not requeued for `KEPT_S` is forgotten.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from typing import NamedTuple

from warmstart.host import wire
from warmstart.host.files import read_small, unlink_if_there, written
from warmstart.images.store.layout import META
from warmstart.images.store.published import opened_folder
from warmstart.store.atomic import TEMP_PREFIX, replace

FOLDER = "requeued"
KEPT_S = 7 * 86400.0
LONGEST = 4096
WAITS = ".wait"


class RequeuedJob(NamedTuple):
    """A job at its last requeue."""

    cluster: str
    job_id: int  # the leader's of a heterogeneous job
    name: str  # for scontrol: 7, or 7_3 of an array
    uid: int
    restarts: int  # of the run that was requeued
    image: str  # reference that was missing
    machine: str  # uname's, of the node that needs the image
    times: int = 0  # that it was requeued
    at: float = 0.0  # seconds since the epoch

    @property
    def file_name(self) -> str:
        """The job's file. Callers have checked that the cluster's name is plain."""
        return f"{self.cluster}.{self.job_id}{META}"

    @property
    def waiting_name(self) -> str:
        """The file that says that the job waits: found by image without reading all jobs."""
        return f"{_hash(self.image, self.machine, self.cluster)}.{self.job_id}{WAITS}"


def count(store: str, job: RequeuedJob, most: int, writer: str) -> int:
    """Count a requeue that is about to be made; return how many these are, 0 if the job has had `most` already.

    A second call for the same run counts nothing: each component of a heterogeneous job has a hook.
    """
    with opened_folder(store, FOLDER) as folder:
        known = _read(folder, job.file_name)
        times = 0
        if known is not None and known.uid == job.uid and known.restarts <= job.restarts and _is_kept(known):
            times = known.times - (known.restarts == job.restarts)
        if times >= most:
            return 0
        data = json.dumps(job._replace(times=times + 1, at=time.time())._asdict()).encode()
        replace(folder, writer, job.file_name, data, 0o600)
        replace(folder, writer, job.waiting_name, b"", 0o600)
    return times + 1


def waiting(store: str, image: str, cluster: str) -> list[RequeuedJob]:
    """Return the jobs of a cluster that were requeued because this image was missing on a machine like this one."""
    start = f"{_hash(image, os.uname().machine, cluster)}."
    with opened_folder(store, FOLDER) as folder:
        names = [name for name in os.listdir(folder) if name.startswith(start) and name.endswith(WAITS)]
        ids = [name.removeprefix(start).removesuffix(WAITS) for name in sorted(names)]
        jobs = [job for job_id in ids if (job := _read(folder, f"{cluster}.{job_id}{META}"))]
    return [job for job in jobs if job.waiting_name.startswith(start)]  # not: it waits for another image by now


def settle(store: str, jobs: list[RequeuedJob]) -> None:
    """Record that these jobs need not wait any more; how often they were requeued is kept."""
    with opened_folder(store, FOLDER) as folder:
        for job in jobs:
            if _read(folder, job.file_name) == job:  # else it was requeued again meanwhile
                unlink_if_there(job.waiting_name, folder)


def forget(store: str) -> int:
    """Remove what is known of jobs that were not requeued for long; return how many files those are."""
    gone = 0
    with opened_folder(store, FOLDER) as folder:
        for name in os.listdir(folder):
            if name.endswith(META) and not name.startswith(TEMP_PREFIX):
                job = _read(folder, name)
                is_old = job is None or not _is_kept(job)
            else:
                is_old = written(name, folder) < time.time() - KEPT_S
            if is_old:
                gone += unlink_if_there(name, folder)
    return gone


def _hash(image: str, machine: str, cluster: str) -> str:
    return hashlib.sha256(f"{image}\0{machine}\0{cluster}".encode()).hexdigest()[:16]


def _is_kept(job: RequeuedJob) -> bool:
    return abs(time.time() - job.at) < KEPT_S


def _read(folder: int, name: str) -> RequeuedJob | None:
    try:
        return wire.from_object(RequeuedJob, wire.parse(read_small(name, LONGEST, folder)))
    except (FileNotFoundError, ValueError):
        return None
