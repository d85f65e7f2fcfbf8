"""A job on several nodes is harvested while it runs: in rounds, each of which is published as a whole or not at all."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lib.alone import run_alone
from tests.lib.live_jobs import LiveJob
from tests.lib.runs import events
from warmstart import errand
from warmstart.errands import merges
from warmstart.harvest import live
from warmstart.host import process
from warmstart.repack import rewrite
from warmstart.steps import harvest
from warmstart.store import parts
from warmstart.store.client import StoreClient

NODELIST = "n[1-2]"


class Killed(BaseException):
    """Stands for SIGKILL."""


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let unsquashfs run without namespaces of its own, and no program start."""
    monkeypatch.setattr(process, "run_alone", run_alone)
    monkeypatch.setattr(errand, "start", lambda *_: None)


class WholeJob:
    """A job on two nodes."""

    def __init__(self, root: Path) -> None:
        self.head = LiveJob(root / "n1", nodelist=NODELIST)
        self.other = LiveJob(root / "n2", beside=self.head, nodelist=NODELIST, node="n2", head=False)
        self.nodes = [self.head, self.other]
        self.rounds = 0

    def look(self, *nodes: LiveJob) -> None:
        """Have these nodes take part in a round, both by default, and what is complete be published."""
        self.rounds += 1
        for node in nodes or self.nodes:
            node.look(number=self.rounds)
        self.head.merge()

    def end(self) -> None:
        """Have the epilog of each node run, and all be published."""
        for node in self.nodes:
            node.end()
        self.head.merge()


@pytest.fixture
def job(tmp_path: Path) -> Iterator[WholeJob]:
    """Give a job that runs, and began cold."""
    made = WholeJob(tmp_path)
    yield made
    made.head.close()


def test_a_round_publishes_what_all_nodes_have_once(job: WholeJob) -> None:
    """As one bundle, when the last one has handed in; the next one adds to it."""
    job.head.write("a", "1")
    job.other.write("b", "1")
    job.head.look(number=1)
    job.head.merge()
    assert job.head.readers() == {}
    job.other.look(number=1)
    job.head.merge()
    assert (sorted(job.head.readers()), job.head.listed(), job.head.left()) == (["a", "b"], 1, [])
    job.rounds = 1
    job.other.write("c", "1")
    job.look()
    assert (sorted(job.head.readers()), job.head.layers()) == (["a", "b", "c"], 1)
    job.end()
    assert [told["entries"] for told in events(job.head.context, "bundle.published")] == [2, 1]
    assert [told["running"] for told in events(job.head.context, "bundle.published")] == [True, True]
    assert job.head.left() == []


def test_a_round_without_news_leaves_nothing(job: WholeJob) -> None:
    """Its last node clears up."""
    job.look()
    assert (job.head.readers(), job.head.left()) == ({}, [])


def age(patch: pytest.MonkeyPatch) -> None:
    """Let the time have passed that a round waits for its nodes."""
    now = time.time
    patch.setattr(time, "time", lambda: now() + parts.PATIENCE_S + 60)


def test_a_round_that_lacks_a_node_is_dropped(job: WholeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its bound, by whoever does what is due, and after the job's death, too. The next round has it again."""
    job.head.write("a", "1")
    job.other.write("b", "1")
    job.look(job.head)
    assert len(job.head.left()) == 1
    with monkeypatch.context() as patch:
        age(patch)
        job.head.merge()
    (told,) = events(job.head.context, "bundle.dropped")
    assert (told["reason"], job.head.readers(), job.head.left()) == ("its round lacks n2", {}, [])
    job.look()
    assert sorted(job.head.readers()) == ["a", "b"]


@pytest.mark.parametrize("how", ["it fails", "it has no time"])
def test_a_node_that_does_not_hand_in_all_is_lacking(job: WholeJob, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """It does not say that it has."""
    job.head.write("a", "1")
    job.other.write("b", "1")
    with monkeypatch.context() as patch:
        if how == "it fails":
            patch.setattr(parts, "MOST_BYTES", 0)
        else:
            patch.setattr(harvest, "_harvest", lambda *_: harvest._Left(["toy"], {}))
        job.other.look(number=1)
    job.head.look(number=1)
    job.head.merge()
    assert job.head.readers() == {}
    job.end()
    assert (sorted(job.head.readers()), job.head.left()) == (["a", "b"], [])


def test_what_a_node_wrote_since_takes_the_place(job: WholeJob) -> None:
    """Of what was taken of it, in a later round and at the end: also what the head node does not have."""
    seen = []
    for content, bring in (("1", job.look), ("2", job.look), ("3", job.end)):
        job.head.write("a", content)
        job.other.write("b", content)
        bring()
        seen.append(job.head.readers())
    assert all(len({readers[entry] for readers in seen}) == 3 for entry in "ab")


def test_a_round_that_is_published_late(job: WholeJob) -> None:
    """After the next one, in which an entry of it was left out: it is not old for ever."""
    job.other.write("b", "1")
    for node in job.nodes:
        node.look(number=1)
    job.other.write("c", "1")
    moment = job.other.now()
    job.other.write("b", "2")
    for node in job.nodes:
        node.look(moment, number=2)
    job.head.merge()
    before = job.head.readers()
    job.end()
    assert (sorted(before), before["b"] != job.head.readers()["b"]) == (["b", "c"], True)


def test_only_the_head_node_retires(job: WholeJob) -> None:
    """What another one removes may be used by the rest."""
    job.head.write("a", "1")
    job.other.write("b", "1")
    job.look()
    job.head.remove("a")
    job.other.remove("b")
    job.end()
    assert sorted(job.head.readers()) == ["b"]
    assert [events(node.context, "cache.harvested")[-1]["retired"] for node in job.nodes] == [1, 0]


def test_the_end_removes_what_rounds_have_left(job: WholeJob) -> None:
    """And brings it itself."""
    job.head.write("a", "1")
    job.look(job.head)
    (left,) = job.head.left()
    job.head.end()
    assert (parts.is_round(left), [*map(parts.is_round, job.head.left())]) == (True, [False])
    job.other.end()
    job.head.merge()
    assert (sorted(job.head.readers()), job.head.left()) == (["a"], [])


def kill_at(patch: pytest.MonkeyPatch, where: str) -> None:
    """Have whoever is at it die there: before or after a call."""
    when, _, name = where.partition(" ")
    module, name = {
        "written down": (live, "note"),
        "handed in": (StoreClient, "hand_in"),
        "finished": (harvest, "_finish"),
        "published": (StoreClient, "publish"),
        "removed": (merges._Merge, "_remove"),
        "absorbed": (rewrite, "compact"),
    }.get(name, (None, ""))
    if module is None:
        return
    real: Callable[..., object] = getattr(module, name)

    def die(*arguments: object, **named: object) -> NoReturn:
        if when == "after":
            real(*arguments, **named)
        raise Killed

    patch.setattr(module, name, die)


POINTS = ("written down", "handed in", "finished", "published", "removed", "absorbed")
DEATHS = ["", *(f"{when} {point}" for when in ("before", "after") for point in POINTS)]
WHOSE = {"a": (0,), "b": (1,), "c": (0,), "d": (1,), "both": (0, 1)}  # by entry: the nodes that make it
DOINGS = st.one_of(
    st.tuples(st.just("write"), st.sampled_from("abcd"), st.sampled_from("12")),
    st.tuples(st.just("write"), st.just("both"), st.just("1")),
    st.tuples(st.just("remove"), st.sampled_from("ac"), st.just("")),
    st.tuples(st.just("look"), st.sampled_from(["", "a", "b"]), st.sampled_from(DEATHS)),
)


@given(st.lists(DOINGS, min_size=3, max_size=9))
@settings(max_examples=6)
def test_rounds_and_the_end_bring_what_the_end_alone_brings(doings: list[tuple[str, str, str]]) -> None:
    """Whatever the nodes do, whichever takes part, and wherever one dies or who merges: readers have the same then."""
    root = Path(tempfile.mkdtemp())
    jobs = [WholeJob(root / name) for name in ("both", "end")]
    try:
        for doing, entry, what in doings:
            if doing == "look":
                with pytest.MonkeyPatch.context() as patch, suppress(Killed):
                    kill_at(patch, what)
                    jobs[0].look(*(jobs[0].nodes[number] for number in WHOSE.get(entry, ())))
                continue
            for node in (job.nodes[number] for job in jobs for number in WHOSE[entry]):
                node.write(entry, what) if doing == "write" else node.remove(entry)
        for job in jobs:
            job.end()
        assert jobs[0].head.readers() == jobs[1].head.readers()
        assert jobs[0].head.left() == []
    finally:
        for job in jobs:
            job.head.close()
        shutil.rmtree(root)
