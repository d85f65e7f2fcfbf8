"""What the nodes of a run hand in is seen together: all of it or nothing, whichever node ends last, dies or repeats."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.lib.bundles import OWNER, draft, memory_file, namespace, publish
from warmstart.caches.store import bundles, ending, generations, listing
from warmstart.caches.store.ending import PATIENCE_S, Run, United
from warmstart.caches.store.layout import content_digest
from warmstart.caches.store.merge import Removal
from warmstart.store.layout import StoreFailed

LATER = time.time() + 2 * PATIENCE_S


class Job:
    """A run of a job on three nodes, of which n1 is the first."""

    def __init__(self, store: Path) -> None:
        self.store = store
        self.where = namespace(store)
        self.run = Run(str(store), ending.name_of(1000, "c", 7, 0))

    def hand_in(self, node: str, *entries: str, content: str = "", removal: Removal | None = None) -> None:
        made = draft(*entries)._replace(removal=removal or Removal(), at=1)
        with memory_file((content or f"{node} {entries}").encode()) as fd:
            row = bundles.put(self.where, OWNER, fd, made, 0) if entries else None
        ending.hand_in(self.run, OWNER, node, node == "n1", self.where, row, made)

    def ended(self, node: str) -> list[United] | None:
        return ending.ended(self.run, OWNER, node, 3)

    def seen(self) -> list[list[str]]:
        return generations.read(self.where).names

    def is_left(self) -> bool:
        return os.path.exists(self.run.path)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path)


def test_the_last_node_shows_what_all_have(job: Job) -> None:
    job.hand_in("n2", "b", "x")
    assert job.ended("n2") is None
    job.hand_in("n1", "a", "x")
    assert job.ended("n1") is None
    assert job.seen() == []
    assert [(one.number, len(one.rows)) for one in job.ended("n3") or ()] == [(1, 2)]
    assert job.seen() == [["a", "x"], ["b"]]  # the first node's version of what both have
    assert not job.is_left()


def test_nodes_without_anything_new_leave_nothing(job: Job) -> None:
    assert [job.ended(node) for node in ("n1", "n2", "n3")] == [None, None, []]
    assert os.listdir(f"{job.store}/ending") == []


def test_a_node_that_ends_twice_counts_once(job: Job) -> None:
    for _ in range(3):
        job.hand_in("n1", "a")
        assert job.ended("n1") is None
    assert len(os.listdir(job.run.path)) == 2


def test_a_node_that_ends_after_the_others_is_united_by_itself(job: Job) -> None:
    job.hand_in("n1", "a")
    for node in ("n1", "n2", "n3"):
        job.ended(node)
    job.hand_in("n2", "late")
    job.ended("n2")
    assert job.seen() == [["a"]]
    assert ending.due(str(job.store), time.time()) == []
    assert ending.due(str(job.store), LATER) == [job.run.name]
    ending.unite(str(job.store), OWNER, job.run.name, LATER)
    assert job.seen() == [["a"], ["late"]]
    assert not job.is_left()


def test_the_others_know_what_the_first_node_has_handed_in(job: Job) -> None:
    assert not ending.has_ended(job.run, "n1")
    assert ending.handed(job.run, job.where, ["n1"]) == []
    job.hand_in("n1", "a", "b")
    job.hand_in("n2", "c")
    job.ended("n1")
    assert ending.has_ended(job.run, "n1")
    assert sorted(ending.handed(job.run, job.where, ["n1", "n3"])) == ["a", "b"]
    assert ending.handed(job.run, job.where._replace(profile="triton"), ["n1"]) == []


def test_what_was_removed_is_the_first_nodes_word(job: Job) -> None:
    publish(job.store, "a", "b", "c")
    for node, entry in (("n2", "a"), ("n1", "b")):
        job.hand_in(node, removal=Removal({entry: content_digest(draft(entry).entries[entry])}))
    for node in ("n1", "n2", "n3"):
        job.ended(node)
    assert job.seen() == [["a", "c"]]


def test_a_bundle_that_was_swept_is_not_listed(job: Job) -> None:
    job.hand_in("n1", "a")
    job.hand_in("n2", "b")
    bundles.sweep(job.where, time.time() + 2 * bundles.ORPHAN_S)
    for node in ("n1", "n2", "n3"):
        job.ended(node)
    assert job.seen() == []


def test_what_the_store_refuses_now_stays_until_later(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.hand_in("n1", "a")
    job.ended("n1")
    job.ended("n2")

    def failing(*_: object) -> None:
        raise StoreFailed(what="change a listing", problem="Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(generations, "change", failing)
        with pytest.raises(StoreFailed):
            job.ended("n3")
        with pytest.raises(StoreFailed):
            ending.unite(str(job.store), OWNER, job.run.name, LATER)
        assert job.is_left()
        assert [
            one.is_passing for one in ending.unite(str(job.store), OWNER, job.run.name, LATER + ending.DROPPED_S)
        ] == [True]
    assert not job.is_left()


@pytest.mark.threat(47)
def test_what_is_too_long_is_dropped_and_told(job: Job, monkeypatch: pytest.MonkeyPatch) -> None:
    job.hand_in("n1", "a" * 50)
    monkeypatch.setattr(listing, "MOST_OF_USER", 49)
    job.ended("n1")
    job.ended("n2")
    united = job.ended("n3") or []
    assert [(one.number, "are allowed" in one.problem) for one in united] == [(0, True)]
    assert not job.is_left()


@pytest.mark.threat(47)
@pytest.mark.parametrize("text", [b"", b"nonsense", b"0" * 64 + b"\n[]"])
def test_what_is_damaged_keeps_nothing_else(job: Job, text: bytes) -> None:
    job.hand_in("n1", "a")
    Path(job.run.path, "n2.0123456789abcdef").write_bytes(text)
    for node in ("n1", "n2", "n3"):
        job.ended(node)
    assert job.seen() == [["a"]]


def test_a_run_needs_a_store_that_is_there(tmp_path: Path) -> None:
    with pytest.raises(StoreFailed):
        ending.ended(Run(str(tmp_path / "missing"), "1.c.7.0"), OWNER, "n1", 2)
    with pytest.raises(ValueError, match="not a run's name"):
        _ = Run(str(tmp_path), "../x").path
