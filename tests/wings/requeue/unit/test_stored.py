"""Jobs that were requeued for an image: counted once for each run, a few times for each job, and found by the image."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from warmstart.wings.requeue import stored
from warmstart.wings.requeue.stored import RequeuedJob

JOB = RequeuedJob("c1", 7, "7", 1000, 0, "reg.io/a:1", os.uname().machine)


@pytest.fixture
def store(tmp_path: Path) -> str:
    """Return an empty store."""
    return str(tmp_path)


def count(store: str, most: int = 2, **changes: Any) -> int:  # noqa: ANN401 - fields of RequeuedJob
    """Count a requeue of the job, with `changes` of its fields."""
    return stored.count(store, JOB._replace(**changes), most, "me")


def test_a_job_is_requeued_so_often_and_no_more(store: str) -> None:
    """Each run once, whatever number of hooks asks."""
    assert [count(store), count(store), count(store, restarts=1), count(store, restarts=2)] == [1, 1, 2, 0]
    assert count(store, most=3, restarts=2) == 3


def test_another_job_of_the_same_id_begins_anew(store: str) -> None:
    """Of another user, or with fewer restarts than that of the last requeue, of another cluster, or a week later."""
    count(store, restarts=4)
    assert count(store, restarts=5) == 2
    assert count(store, restarts=6, uid=1001) == 1
    assert count(store, restarts=0, uid=1001) == 1
    assert count(store, restarts=7, cluster="c2") == 1
    assert count(store, restarts=1, uid=1001) == 2


def test_what_is_known_is_the_owners_and_goes_after_a_week(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file of a job that is still requeued stays."""
    count(store)
    folder = Path(store, "images/requeued")
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    (folder / "c1.8.json").write_text("{")
    assert stored.forget(store) == 1
    assert sorted(os.listdir(folder)) == sorted(["c1.7.json", JOB.waiting_name])
    later = time.time() + stored.KEPT_S + 1
    monkeypatch.setattr(time, "time", lambda: later)
    assert count(store, restarts=1) == 1
    later += stored.KEPT_S + 1
    assert stored.forget(store) == 2
    assert os.listdir(folder) == []


def test_an_image_s_jobs_are_found_and_let_go(store: str) -> None:
    """Those of this cluster, on machines of this kind; how often they were requeued is still known."""
    count(store)
    count(store, job_id=8, image="reg.io/b:1")
    count(store, job_id=9, machine="other")
    count(store, cluster="c2")
    (found,) = stored.waiting(store, "reg.io/a:1", "c1")
    assert (found.name, found.times) == ("7", 1)
    stored.settle(store, [found])
    assert stored.waiting(store, "reg.io/a:1", "c1") == []
    assert count(store, restarts=1) == 2


def test_a_job_that_is_requeued_meanwhile_waits_on(store: str) -> None:
    """What was read of it before counts no more."""
    count(store)
    (found,) = stored.waiting(store, "reg.io/a:1", "c1")
    count(store, restarts=1)
    stored.settle(store, [found])
    assert len(stored.waiting(store, "reg.io/a:1", "c1")) == 1
    count(store, most=3, restarts=2, image="reg.io/b:1")
    assert stored.waiting(store, "reg.io/a:1", "c1") == []
    assert len(stored.waiting(store, "reg.io/b:1", "c1")) == 1
