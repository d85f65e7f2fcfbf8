"""A job that runs is harvested: what is taken, what is left, and that its end brings what it would have brought."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lib.alone import run_alone
from tests.lib.live_jobs import TOY, LiveJob
from tests.lib.runs import events
from warmstart.harvest import live
from warmstart.harvest.collect import Stage
from warmstart.host import process
from warmstart.record import Seeded
from warmstart.repack import rewrite
from warmstart.store.client import StoreClient
from warmstart.store.layout import StoreFailed
from warmstart.store.manifest import File

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


def test_after_a_reboot_nothing_is_retired_and_nothing_is_lost(job: LiveJob) -> None:
    job.write("a", "1")
    job.write("b", "1")
    job.look()
    job.remove("a")
    job.write("c", "1")
    job.context = job.context._replace(record=job.context.record._replace(boot_id="an earlier one"))
    job.end()
    assert sorted(job.readers()) == ["a", "b", "c"]


def test_a_run_adds_one_layer(job: LiveJob) -> None:
    for entry in ENTRIES:
        job.write(entry, "1")
        job.look()
    job.write("a", "2")
    job.look()
    assert (sorted(job.readers()), job.layers()) == ([*ENTRIES], 1)
    replaced = [one["replaces"] for one in events(job.context, "bundle.compacted")]
    assert [len(names) for names in replaced] == [2, 2, 2]


def test_a_store_that_fails_loses_nothing(job: LiveJob, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> NoReturn:
        raise StoreFailed(what="x", problem="y")

    job.write("a", "1")
    with monkeypatch.context() as patch:
        patch.setattr(StoreClient, "publish", refuse)
        assert [type(error) for error in job.look().degraded] == [StoreFailed]
    assert not os.path.lexists(job.context.paths.spool)
    assert job.look().detail == {"entries": 1}
    assert sorted(job.readers()) == ["a"]


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
        record=job.context.record._replace(seeded=both),
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


def kill_at(patch: pytest.MonkeyPatch, where: str) -> None:
    def dying(module: object, name: str, *, first: bool) -> None:
        real: Callable[..., object] = getattr(module, name)

        def die(*arguments: object, **named: object) -> NoReturn:
            if not first:
                real(*arguments, **named)
            raise Killed

        patch.setattr(module, name, die)

    match where:
        case "before it is written down":
            dying(live, "note", first=True)
        case "before it is published":
            dying(StoreClient, "publish", first=True)
        case "after it is published":
            dying(StoreClient, "publish", first=False)
        case "before it is absorbed":
            dying(rewrite, "compact", first=True)
        case "after it is absorbed":
            dying(rewrite, "compact", first=False)


DEATHS = (
    "before it is written down", "before it is published", "after it is published", "before it is absorbed",
    "after it is absorbed",
)  # fmt: skip
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
                    kill_at(patch, what)
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
