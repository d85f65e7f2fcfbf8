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
    made = WholeJob(tmp_path)
    yield made
    made.head.close()


def test_a_round_publishes_what_all_nodes_have_once(job: WholeJob) -> None:
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


def age(patch: pytest.MonkeyPatch) -> None:
    """Let the time have passed that a round waits for its nodes."""
    now = time.time
    patch.setattr(time, "time", lambda: now() + parts.PATIENCE_S + 60)


def test_a_round_that_lacks_a_node_is_dropped(job: WholeJob, monkeypatch: pytest.MonkeyPatch) -> None:
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
