"""Requeued jobs that wait for an image: when they start."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from tests.support.entry_site import EntrySite
from warmstart.host.deadline import Deadline
from warmstart.slurm import commands
from warmstart.slurm.facts import Access, JobFacts
from warmstart.wings.requeue import importing, scontrol, stored
from warmstart.wings.requeue.client import RequeueClient
from warmstart.wings.requeue.importing import WaitingJobs
from warmstart.wings.requeue.stored import RequeuedJob

IMAGE = "reg.io/a:1"
HELD = "now+300"


class Queue:
    """Slurm's queue: jobs by id, and what was done to them."""

    def __init__(self, site: EntrySite, patch: pytest.MonkeyPatch) -> None:
        self.store = str(site.store)
        self.jobs: dict[int, JobFacts] = {}
        self.updates: list[tuple[list[str], str]] = []
        self.asked = 0
        patch.setattr(commands, "jobs", self._jobs)
        patch.setattr(scontrol, "put_off", self._put_off)
        patch.setattr(importing, "HOLD_AGAIN_S", 0.0)
        self.client = RequeueClient.of(site.policy.store_user, self.store)
        self.waiting = WaitingJobs(self.client, Access("/nowhere"), IMAGE, "c1")

    def add(self, job_id: int, state: str = "PENDING", later: float = 121.0) -> None:
        """Requeue a job, which may start so many seconds later."""
        job = RequeuedJob("c1", job_id, f"{job_id}_1", 1000, 0, IMAGE, os.uname().machine)
        assert stored.count(self.store, job, 3, "me")
        self.jobs[job_id] = JobFacts(job_id, state, "", f"{job_id}_1", int(time.time() + later))

    def told(self) -> list[tuple[list[str], str]]:
        """Return the updates since the last call."""
        found, self.updates = self.updates, []
        return found

    def _jobs(self, _access: Access, job_ids: list[int], _deadline: Deadline) -> list[JobFacts]:
        self.asked += 1
        return [self.jobs[job_id] for job_id in job_ids if job_id in self.jobs]

    def _put_off(self, _access: Access, names: list[str], start: str, _deadline: Deadline) -> str:
        self.updates.append((names, start))
        for job_id, job in self.jobs.items():
            if f"{job_id}_1" in names:
                eligible = int(time.time() + float(start.partition("+")[2] or 0))
                self.jobs[job_id] = job._replace(eligible=eligible)
        return ""


@pytest.fixture
def queue(entry_site: EntrySite, monkeypatch: pytest.MonkeyPatch) -> Iterator[Queue]:
    """Return an empty queue."""
    found = Queue(entry_site, monkeypatch)
    yield found
    found.client.close()


def test_pending_jobs_stay_pending(queue: Queue) -> None:
    """One call for all that get the same; a run that still ends is left."""
    queue.add(7)
    queue.add(8, "COMPLETING")
    queue.add(9)
    for _ in range(2):
        queue.waiting.progressed()
        assert queue.told() == [(["7_1", "9_1"], HELD)]


def test_no_job_is_held_twice_in_a_row(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """An import reports every two seconds."""
    monkeypatch.setattr(importing, "HOLD_AGAIN_S", 30.0)
    queue.add(7)
    queue.waiting.progressed()
    queue.waiting.progressed()
    assert len(queue.told()) == 1


def test_without_waiting_jobs_slurm_is_asked_nothing(queue: Queue) -> None:
    """That is most imports."""
    queue.waiting.progressed()
    queue.waiting.ended()
    assert (queue.asked, queue.updates) == (0, [])


def test_jobs_that_were_held_start_when_the_image_is_there(queue: Queue) -> None:
    """Not before Slurm itself would have started them: its slurmd would run no prolog."""
    queue.add(7, later=121)
    queue.add(8, later=-5)  # slurmctld has not set it yet
    queue.waiting.progressed()
    queue.told()
    queue.waiting.ended()
    starts = [int(start.removeprefix("now+")) for _, start in queue.told()]
    assert all(118 <= start <= 122 for start in starts)
    assert starts
    assert stored.waiting(queue.store, IMAGE, "c1") == []


def test_a_start_that_somebody_else_chose_stays(queue: Queue) -> None:
    """Whether before we held the job, or after it."""
    queue.add(7, later=7200)
    queue.add(8)
    queue.waiting.progressed()
    assert queue.told() == [(["8_1"], HELD)]
    queue.jobs[8] = queue.jobs[8]._replace(eligible=int(time.time()) + 9000)
    queue.waiting.progressed()
    queue.waiting.ended()
    assert queue.told() == []


def test_a_job_that_was_never_held_starts_by_itself(queue: Queue) -> None:
    """It was requeued at the end of the import, or is over."""
    queue.add(7)
    queue.add(8, "COMPLETING")
    queue.add(9, "CANCELLED")
    queue.waiting.ended()
    assert queue.told() == []
    assert stored.waiting(queue.store, IMAGE, "c1") == []


def test_a_silent_controller_changes_nothing(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """The jobs start by themselves."""

    def silent(*_: object) -> list[JobFacts]:
        raise ValueError("squeue: Unable to contact slurm controller")

    queue.add(7)
    monkeypatch.setattr(commands, "jobs", silent)
    queue.waiting.progressed()
    queue.waiting.ended()
    assert queue.updates == []
