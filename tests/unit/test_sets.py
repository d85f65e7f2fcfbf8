"""Sets of caches that are made while the job runs: one for each image, whoever dies, and never one too many."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.runs import events
from tests.support.step_sets import FIRST, IMAGE, OTHER, Run
from warmstart import record as records
from warmstart import sets, view
from warmstart.errors import WarmstartError
from warmstart.host.deadline import after
from warmstart.profiles import registry
from warmstart.record import CacheSet
from warmstart.seed import overlay
from warmstart.sets import MOST, RunOver, SetUnfinished, TooManySets
from warmstart.steps import seed
from warmstart.steps.contract import Context, Outcome


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Run]:
    """Give a run on a node that mounts nothing."""
    monkeypatch.setattr(view, "allow_reading", lambda *_: None)
    made = Run(tmp_path)
    yield made
    made.context.store.close()


def test_an_image_has_one_set(run: Run) -> None:
    """Of the facts that a prolog would have found; whichever reference names it. Later steps read of it."""
    key = run.provide()
    (made,) = run.sets
    assert (made.key, made.image, made.facts["image"], made.publish_scope) == (key, OTHER, OTHER, "user-1-a")
    assert made.seeded["numba"].namespace not in {"", "ns"}
    assert run.directories == [key]
    assert os.listdir(f"{run.context.record.of(made).set_directory}/cache") == ["numba"]
    assert run.provide(IMAGE._replace(reference="reg.example.com/a:latest", path="/store/b.sqsh")) == key
    assert (run.shown(), run.shown("reg.example.com/a:latest")) == (f"{key} /store/a.sqsh\n", f"{key} /store/b.sqsh\n")
    assert len(events(run.context, "step.finished")) == 1


def test_the_image_of_the_first_set_needs_no_other(run: Run) -> None:
    """A step that names by digest what the job named by tag."""
    assert run.provide(IMAGE._replace(digest=FIRST)) == ""
    assert (run.sets, run.directories, run.shown()) == ([], [], " /store/a.sqsh\n")


@pytest.mark.threat(60)
def test_a_ninth_image_has_none(run: Run) -> None:
    """Those that have one keep it."""
    images = [IMAGE._replace(reference=f"r/{number}:1", digest=f"sha256:{number:064x}") for number in range(MOST + 1)]
    keys = [run.provide(image) for image in images[:MOST]]
    with pytest.raises(TooManySets):
        run.provide(images[MOST])
    assert run.provide(images[0]) == keys[0]
    assert (run.directories, run.shown(images[MOST].reference)) == (sorted(keys), "")


@pytest.mark.parametrize("changed", [None, {"run_id": "ffffffff"}, {"cache": ""}])
def test_a_run_that_is_over_gets_no_set(run: Run, changed: dict[str, str] | None) -> None:
    """Its epilog has come, the job was requeued, or it has no caches."""
    if changed is None:
        records.forget(run.state, 7)
    else:
        records.save(run.state, run.context.record._replace(**changed))  # type: ignore[arg-type]
    with pytest.raises(RunOver):
        run.provide()
    assert (run.sets, run.directories, run.shown()) == ([], [], "")


def test_a_run_that_ends_meanwhile_keeps_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its epilog forgot it while the set was made: the maker undoes it."""
    real = seed.run

    def ends(context: Context, options: seed.Options) -> Outcome:
        outcome = real(context, options)
        records.forget(run.state, 7)
        return outcome

    monkeypatch.setattr(seed, "run", ends)
    with pytest.raises(RunOver):
        run.provide()
    assert (run.directories, run.shown(), os.listdir(run.state)) == ([], "", [])


def killed_in(run: Run, act: Callable[[], object]) -> None:
    """Make a set in a process that is killed on the way."""
    pid = os.fork()
    if not pid:
        try:
            act()
        finally:
            os._exit(1)
    os.waitpid(pid, 0)


@pytest.mark.threat(60)
@pytest.mark.parametrize("place", ["save_set", "ensure_dir", "_build", "seed", "save_set again", "_show"])
def test_a_maker_that_dies_costs_the_next_one_nothing(run: Run, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """What it has begun is undone, and made anew under another key."""

    def dies(*_: object, **__: object) -> None:
        os._exit(0)

    def make() -> None:
        module, name = {"seed": (seed, "run")}.get(place, (sets, place))
        if place.startswith("save_set"):
            real, calls = records.save_set, []

            def save(state: str, job_id: int, other: CacheSet) -> None:
                calls.append(other)
                real(state, job_id, other)
                if len(calls) == (2 if place.endswith("again") else 1):
                    dies()

            monkeypatch.setattr(records, "save_set", save)
        else:
            monkeypatch.setattr(module, name, dies)
        run.provide()

    killed_in(run, make)
    (begun,) = run.sets
    key = run.provide()
    is_whole = place in {"save_set again", "_show"}
    assert (key == begun.key, [made.key for made in run.sets], run.directories) == (is_whole, [key], [key])
    assert run.shown() == f"{key} /store/a.sqsh\n"


def test_who_asks_while_it_is_made_waits(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both have the one set."""
    real, begun, go = seed.run, threading.Event(), threading.Event()

    def slow(context: Context, options: seed.Options) -> Outcome:
        begun.set()
        assert go.wait(20)
        return real(context, options)

    monkeypatch.setattr(seed, "run", slow)
    keys: list[str] = []
    steps = [threading.Thread(target=lambda: keys.append(run.provide())) for _ in range(2)]
    steps[0].start()
    assert begun.wait(20)
    steps[1].start()
    with pytest.raises(SetUnfinished):
        sets.provide(run.context._replace(deadline=after(0.3)), IMAGE, [])
    go.set()
    for step in steps:
        step.join()
    assert keys == [run.sets[0].key] * 2


def test_what_cannot_be_seeded_is_undone(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """The user's quota, for instance; the next step tries again."""

    def refuse(_: Context) -> seed.CacheWithheld:
        return seed.CacheWithheld(problem="quota")

    monkeypatch.setattr(seed, "_give_away", refuse)
    with pytest.raises(WarmstartError, match="quota"):
        run.provide()
    assert (run.sets, run.directories, run.shown()) == ([], [], "")


def test_overlays_that_steps_would_not_see_are_extracted(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no namespace of the job's can be joined."""
    dropped: list[str] = []
    monkeypatch.setattr(overlay, "discard", lambda _fd, name: dropped.append(name))
    context = run.context._replace(record=run.context.record._replace(key="c0ffee00"))
    os.makedirs(f"{context.record.set_directory}/cache/numba")
    seeding = seed._Seeding(context, None)
    profile = registry.get("numba")
    seeding._sources = [seed._Source(profile, "ns", [], 0.0, way="overlay")]

    def refuse(_: list[str]) -> None:
        raise PermissionError(1, "no")

    seeding.attach(refuse)
    assert (dropped, [source.way for source in seeding._sources]) == (["numba"], [""])
    assert len(events(context, "overlay.failed")) == 1
