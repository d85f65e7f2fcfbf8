"""A job that runs is harvested: what is taken, what is left, and that its end brings what it would have brought."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lib.alone import run_alone
from tests.lib.live_jobs import TOY, LiveJob
from tests.lib.runs import a_policy, a_run, changed, events
from warmstart.errands import merges
from warmstart.harvest import live
from warmstart.harvest.collect import Stage
from warmstart.harvest.live import Taken
from warmstart.host import process
from warmstart.repack import rewrite
from warmstart.run.state import Seeded
from warmstart.steps import harvest
from warmstart.store import parts
from warmstart.store.client import StoreClient
from warmstart.store.manifest import File

NODELIST = "n[1-2]"
ENTRIES, CONTENTS = ("a", "b", "c"), ("1", "2")


class Killed(BaseException):
    """Stands for SIGKILL."""


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "run_alone", run_alone)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[LiveJob]:
    made = LiveJob(tmp_path / "it")
    yield made
    made.close()


@pytest.mark.parametrize("touch", ["a file", "a directory of the entry", "a name in it"])
def test_an_entry_is_settled_as_a_whole(job: LiveJob, touch: str) -> None:
    (job.cache / "a" / "deep").mkdir(parents=True)
    (job.cache / "a" / "deep" / "g").write_text("x")
    job.write("a", "1")
    job.write("b", "1")
    moment = job.now()
    if touch == "a file":
        (job.cache / "a" / "f").write_text("2")
        os.utime(job.cache / "a" / "f", (1e9, 1e9))
    elif touch == "a directory of the entry":
        (job.cache / "a" / "deep").chmod(0o700)
    else:
        (job.cache / "a" / "deep" / "more").mkdir()
    job.look(moment)
    assert sorted(job.readers()) == ["b"]


def test_what_changes_while_it_is_copied_is_left(job: LiveJob, monkeypatch: pytest.MonkeyPatch) -> None:
    for entry in ENTRIES:
        (job.cache / entry).mkdir()
        for name in ("f", "g"):
            (job.cache / entry / name).write_text("1")
    copy_in, moment = Stage.copy_in, job.now()

    def copying(self: Stage, source: int, path: str, deadline: Any) -> File:  # noqa: ANN401
        if path == "a/g":
            (job.cache / "a" / "f").write_text("2")
        if path == "b/g":
            (job.cache / "b" / "new").write_text("2")
        return copy_in(self, source, path, deadline)

    monkeypatch.setattr(Stage, "copy_in", copying)
    job.look(moment)
    assert sorted(job.readers()) == ["c"] == job.taken()


def test_a_run_adds_one_layer(job: LiveJob) -> None:
    for entry in ENTRIES:
        job.write(entry, "1")
        job.look()
    job.write("a", "2")
    job.look()
    assert (sorted(job.readers()), job.layers()) == ([*ENTRIES], 1)
    replaced = [one["replaces"] for one in events(job.context, "bundle.compacted")]
    assert [len(names) for names in replaced] == [2, 2, 2]


@pytest.mark.parametrize("seeded", ["toy", "toy and other"])
def test_what_refers_to_others_is_taken_with_them(job: LiveJob, monkeypatch: pytest.MonkeyPatch, seeded: str) -> None:
    from warmstart.profiles import registry

    get, others = registry.get, {"toy": ("toy", "other")}

    def referring(name: str, defined: Any = ()) -> Any:  # noqa: ANN401
        return get(name, defined)._replace(refers_to=others.get(name, ()))

    policy = job.context.policy
    both = {name: Seeded("ns", []) for name in seeded.split(" and ")}
    job.context = job.context._replace(
        policy=policy._replace(profiles=(TOY, TOY._replace(name="other"))),
        run=changed(job.context.run, seeded=both),
    )
    job.write("a", "1")
    moment = job.now()
    changing = job.cache if len(both) == 1 else job.cache.parent / "other"
    (changing / "b").mkdir(parents=True)
    (changing / "b" / "f").write_text("1")
    monkeypatch.setattr(registry, "get", referring)
    job.look(moment)
    assert job.readers() == {}
    job.look()
    assert "a" in job.readers()


def kill(patch: pytest.MonkeyPatch, where: str) -> None:
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


DEATHS = ("before written down", "before published", "after published", "before absorbed", "after absorbed")
DOINGS = st.one_of(
    st.tuples(st.just("write"), st.sampled_from(ENTRIES), st.sampled_from(CONTENTS)),
    st.tuples(st.just("remove"), st.sampled_from(ENTRIES), st.just("")),
    st.tuples(st.just("look"), st.just(""), st.sampled_from(["", "early", *DEATHS])),
)


@given(st.lists(DOINGS, min_size=3, max_size=9), st.dictionaries(st.sampled_from(ENTRIES), st.sampled_from(CONTENTS)))
@settings(max_examples=12)
def test_what_is_taken_meanwhile_and_the_end_bring_what_the_end_alone_brings(
    doings: list[tuple[str, str, str]], seeded: dict[str, str]
) -> None:
    check(doings, seeded)


def check(doings: list[tuple[str, str, str]], seeded: dict[str, str]) -> None:
    """Let two jobs do the same, one of which is harvested meanwhile, and compare what readers have in the end."""
    root = Path(tempfile.mkdtemp())
    others = dict.fromkeys("uvwxyz", "1")  # with which no job removes most of what it was given
    jobs = [LiveJob(root / name, {**others, **seeded}) for name in ("both", "end")]
    try:
        moment = jobs[0].now()
        for doing, entry, what in doings:
            if doing == "look":
                with pytest.MonkeyPatch.context() as patch:
                    kill(patch, what)
                    with suppress(Killed):
                        jobs[0].look(moment if what == "early" else 0)
                moment = jobs[0].now()
                continue
            for job in jobs:
                job.write(entry, what) if doing == "write" else job.remove(entry)
        for job in jobs:
            job.end()
        assert jobs[0].readers() == jobs[1].readers()
    finally:
        for job in jobs:
            job.close()
        shutil.rmtree(root)


def test_a_round_finds_its_bundle_gone(job: LiveJob) -> None:
    job.write("a", "1")
    job.look()
    shutil.rmtree(job.where.path)
    job.write("b", "1")
    job.look()
    assert sorted(job.readers()) == ["a", "b"]


# A job on several nodes is harvested in rounds, each of which is published as a whole or not at all.


class WholeJob:
    """A job on two nodes."""

    def __init__(self, root: Path) -> None:
        self.head = LiveJob(root / "n1", nodelist=NODELIST)
        self.other = LiveJob(root / "n2", beside=self.head, nodelist=NODELIST, node="n2")
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
def whole(tmp_path: Path) -> Iterator[WholeJob]:
    made = WholeJob(tmp_path)
    yield made
    made.head.close()


def test_a_round_publishes_what_all_nodes_have_once(whole: WholeJob) -> None:
    whole.head.write("a", "1")
    whole.other.write("b", "1")
    whole.head.look(number=1)
    whole.head.merge()
    assert whole.head.readers() == {}
    whole.other.look(number=1)
    whole.head.merge()
    assert (sorted(whole.head.readers()), whole.head.listed(), whole.head.left()) == (["a", "b"], 1, [])
    whole.rounds = 1
    whole.other.write("c", "1")
    whole.look()
    assert (sorted(whole.head.readers()), whole.head.layers()) == (["a", "b", "c"], 1)
    whole.end()
    told = [line["caches"]["toy"] for line in events(whole.head.context, "harvest.finished")]
    assert [(cache["entries"], cache["running"]) for cache in told if "bundle" in cache] == [(2, True), (1, True)]
    assert whole.head.left() == []


def age(patch: pytest.MonkeyPatch) -> None:
    """Let the time have passed that a round waits for its nodes."""
    now = time.time
    patch.setattr(time, "time", lambda: now() + parts.PATIENCE_S + 60)


def test_a_round_that_lacks_a_node_is_dropped(whole: WholeJob, monkeypatch: pytest.MonkeyPatch) -> None:
    whole.head.write("a", "1")
    whole.other.write("b", "1")
    whole.look(whole.head)
    assert len(whole.head.left()) == 1
    with monkeypatch.context() as patch:
        age(patch)
        whole.head.merge()
    (told,) = events(whole.head.context, "bundle.dropped")
    assert (told["reason"], whole.head.readers(), whole.head.left()) == ("its round lacks n2", {}, [])
    whole.look()
    assert sorted(whole.head.readers()) == ["a", "b"]


POINTS = ("written down", "handed in", "finished", "published", "removed", "absorbed")
ALL_DEATHS = ["", *(f"{when} {point}" for when in ("before", "after") for point in POINTS)]
WHOSE = {"a": (0,), "b": (1,), "c": (0,), "d": (1,), "both": (0, 1)}  # by entry: the nodes that make it
ALL_DOINGS = st.one_of(
    st.tuples(st.just("write"), st.sampled_from("abcd"), st.sampled_from("12")),
    st.tuples(st.just("write"), st.just("both"), st.just("1")),
    st.tuples(st.just("remove"), st.sampled_from("ac"), st.just("")),
    st.tuples(st.just("look"), st.sampled_from(["", "a", "b"]), st.sampled_from(ALL_DEATHS)),
)


@given(st.lists(ALL_DOINGS, min_size=3, max_size=9))
@settings(max_examples=6)
def test_rounds_and_the_end_bring_what_the_end_alone_brings(doings: list[tuple[str, str, str]]) -> None:
    root = Path(tempfile.mkdtemp())
    jobs = [WholeJob(root / name) for name in ("both", "end")]
    try:
        for doing, entry, what in doings:
            if doing == "look":
                with pytest.MonkeyPatch.context() as patch, suppress(Killed):
                    kill(patch, what)
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


# Which jobs are harvested while they run, of what, and what is remembered of it.

NAMES = ("numba", "inductor", "triton", "trt-rtx", "files", "vllm", "no-more")


def test_which_profiles_wait_for_the_end(tmp_path: Path) -> None:
    policy = a_policy(tmp_path)
    record = a_run(seeded={name: Seeded("ns") for name in NAMES})
    assert live.profiles(policy, record.own) == ["numba", "triton", "inductor", "vllm"]


def test_which_jobs_wait_for_the_end(tmp_path: Path) -> None:
    policy, record = a_policy(tmp_path), a_run(publish_scope="user-1-a")
    choosy = policy._replace(harvest=policy.harvest._replace(only_successful=True))
    told = [
        live.why_not(policy, record._replace(fresh=True)),
        live.why_not(choosy, record),
        live.why_not(policy, changed(record, publish_scope="")),
    ]
    assert (live.why_not(policy, record), all(told), len({*told})) == ("", True, 3)


@pytest.fixture
def begun(tmp_path: Path) -> str:
    return str(tmp_path)


def test_what_was_taken_is_remembered(begun: str) -> None:
    files = {"a": {"a/f": File(3, "ab" * 32, 7)}}
    live.note(begun, "toy", whole := Taken("b", files, {"c": {"c/f": File(4, "cd" * 32, 8)}}))
    assert (live.taken(begun, "toy"), live.taken(begun, "other")) == (whole, Taken())
    (name,) = os.listdir(begun)
    assert os.stat(f"{begun}/{name}").st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b'{"entries": 3}'])
def test_what_cannot_be_read_was_not_taken(begun: str, content: bytes) -> None:
    Path(begun, ".taken-toy").write_bytes(content)
    assert live.taken(begun, "toy") == Taken()
