"""Jobs that were requeued because of an image, seen by its background import (`errands.imports`). Runs as root.

While the import runs, their start is put off a few minutes at a time: else they would come back and wait in vain until
they have used up `requeue.times`. When the image is there, or cannot be had, they may start: at the earliest when
Slurm itself would have let them. Before that a slurmd takes the job for the one that it knows, and runs no prolog
(`slurm_cred_jobid_cached`; seen with 22.05).

A start that somebody else has put off is left alone. All of it is comfort: whatever fails here is left, and the jobs
start by themselves.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from warmstart.errors import WarmstartError
from warmstart.host.deadline import after
from warmstart.policy.compiled import Policy
from warmstart.slurm.facts import Access, JobFacts
from warmstart.slurm.slurmctld import QUERY_S, Slurmctld
from warmstart.wings.requeue import scontrol, stored
from warmstart.wings.requeue.client import RequeueClient
from warmstart.wings.requeue.stored import RequeuedJob

LOOK_S = 5.0  # between two looks into the store, as long as no job waits
HOLD_AGAIN_S = 30.0  # between two updates of the jobs
HOLD_S = 300.0  # that a job's start is put off
STORE_S = 10.0
MOST = 500  # jobs in one call
TOLERANCE_S = 10.0  # between the start that was asked for and the one that slurmctld has
SLURMS_DELAY_S = 600.0  # a requeued job that starts later than this was put off by somebody
LEAST_DELAY_S = 121.0  # Slurm's own by default (AuthInfo=cred_expire)


@contextmanager
def watching(policy: Policy, access: Access, image: str, cluster: str) -> Iterator[WaitingJobs]:
    """Watch the jobs that wait for an image, in a `with` block.

    It has a worker of its own: a signal may interrupt a call of another one.
    """
    with RequeueClient.of(policy.store_user, policy.paths.store) as store:
        yield WaitingJobs(store, access, image, cluster)


class WaitingJobs:
    """The requeued jobs of one cluster that wait for one image."""

    def __init__(self, store: RequeueClient, access: Access, image: str, cluster: str) -> None:
        """`image` is the canonical reference; `store` the shared one, also for private images."""
        self._store = store
        self._access = access
        self._slurmctld = Slurmctld(access)
        self._image = image
        self._cluster = cluster
        self._due = 0.0
        self._earliest: dict[tuple[int, int], int] = {}  # job id and restarts → when Slurm would have let it start
        self._held: dict[tuple[int, int], float] = {}  # … → when we have let it start so far, 0: not ours to change

    def progressed(self) -> None:
        """Put the pending jobs' start off, unless that has just been done."""
        if time.monotonic() < self._due:
            return
        self._due = time.monotonic() + LOOK_S
        try:
            jobs, facts = self._pending()
        except WarmstartError:
            return
        if jobs:
            self._due = time.monotonic() + HOLD_AGAIN_S
        starts = {}
        for job in jobs:
            if self._is_ours(job, facts[job.job_id]):
                self._held[job.job_id, job.restarts] = time.time() + HOLD_S
                starts[job.name] = f"now+{HOLD_S:.0f}"
        self._update(starts)

    def ended(self) -> None:
        """Let the jobs start."""
        try:
            jobs, facts = self._pending()
            starts = {}
            for job in jobs:
                if self._is_ours(job, facts[job.job_id]) and (job.job_id, job.restarts) in self._held:
                    left = self._earliest[job.job_id, job.restarts] - time.time()
                    starts[job.name] = f"now+{math.ceil(left)}" if left > 0 else "now"
            self._update(starts)
            waiting = self._store.run(after(STORE_S), stored.waiting, self._image, self._cluster)
            self._store.run(after(STORE_S), stored.settle, waiting)
        except WarmstartError:
            pass

    def _pending(self) -> tuple[list[RequeuedJob], dict[int, JobFacts]]:
        """Return the jobs that are pending, and what slurmctld says about them."""
        jobs = self._store.run(after(STORE_S), stored.waiting, self._image, self._cluster)[:MOST]
        known = self._slurmctld.jobs([job.job_id for job in jobs], after(QUERY_S)) if jobs else []
        facts = {job.job_id: job for job in known if job.is_pending}
        return [job for job in jobs if job.job_id in facts], facts

    def _is_ours(self, job: RequeuedJob, facts: JobFacts) -> bool:
        """Return whether nobody but Slurm and we have put the job's start off."""
        key = job.job_id, job.restarts
        expected = self._held.get(key)
        if expected is None:
            # Slurm sets the time only when the requeued run has ended: an older one is that of the first start.
            self._earliest[key] = facts.eligible if facts.eligible > job.at else math.ceil(job.at + LEAST_DELAY_S)
            is_ours = facts.eligible < time.time() + SLURMS_DELAY_S
        else:
            is_ours = abs(facts.eligible - expected) < TOLERANCE_S
        if not is_ours:
            self._held[key] = 0.0
        return is_ours

    def _update(self, starts: dict[str, str]) -> None:
        """Change start times (job name → scontrol's StartTime), with one call for all jobs that get the same."""
        calls: dict[str, list[str]] = {}
        for name, start in starts.items():
            calls.setdefault(start, []).append(name)
        for start, names in calls.items():
            scontrol.put_off(self._access, names, start, after(QUERY_S))
