"""Caches that are made while the job runs: once for each image, whoever dies, and never too many."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.lib.runs import changed, result
from tests.lib.wings.step_images.step_caches import FIRST, IMAGE, OTHER, Run
from warmstart import view, wing
from warmstart.ending.release import release
from warmstart.errors import WarmstartError
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import DiskFailed
from warmstart.run import state as runs
from warmstart.run.state import Caches
from warmstart.seed import vote
from warmstart.step_image import StepHasNoCaches, StepImage
from warmstart.steps import seed
from warmstart.steps.contract import Context
from warmstart.store import barrier
from warmstart.wings.step_images import caches
from warmstart.wings.step_images.caches import MOST


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Give a run on a node that mounts nothing."""
    monkeypatch.setattr(view, "allow_reading", lambda *_: None)
    return Run(tmp_path)


def test_an_image_has_its_caches_once(run: Run) -> None:
    """Of the facts that a prolog would have found; whichever reference names it. Later steps read of it."""
    key = run.provide()
    (made,) = run.others
    assert (made.key, made.image, made.facts["image"], made.publish_scope) == (key, OTHER, OTHER, "user-1-a")
    assert made.seeded["numba"].namespace not in {"", "ns"}
    assert run.directories == [key]
    assert os.listdir(f"{run.context.run.directory_of(made)}/cache") == ["numba"]
    assert run.provide(IMAGE._replace(reference="reg.example.com/a:latest", path="/store/b.sqsh")) == key
    assert (run.shown(), run.shown("reg.example.com/a:latest")) == (f"{key} /store/a.sqsh\n", f"{key} /store/b.sqsh\n")
    line = result(run.context)
    assert (line["of"], [*line["steps"]]) == (IMAGE.reference, ["seed"])


def test_the_image_of_the_first_set_needs_no_other(run: Run) -> None:
    assert run.provide(IMAGE._replace(digest=FIRST)) == ""
    assert (run.others, run.directories, run.shown()) == ([], [], " /store/a.sqsh\n")


@pytest.mark.threat(60)
def test_a_ninth_image_has_none(run: Run) -> None:
    images = [IMAGE._replace(reference=f"r/{number}:1", digest=f"sha256:{number:064x}") for number in range(MOST + 1)]
    keys = [run.provide(image) for image in images[:MOST]]
    with pytest.raises(StepHasNoCaches, match=f"has caches for {MOST} more images"):
        run.provide(images[MOST])
    assert run.provide(images[0]) == keys[0]
    assert (run.directories, run.shown(images[MOST].reference)) == (sorted(keys), "")


@pytest.mark.parametrize("changes", [None, {"run_id": "ffffffff"}, {"path": ""}])
def test_a_run_that_is_over_gets_no_more_caches(run: Run, changes: dict[str, str] | None) -> None:
    if changes is None:
        runs.forget(run.state, 7)
    else:
        runs.save(run.state, changed(run.context.run, **changes))
    with pytest.raises(StepHasNoCaches):
        run.provide()
    assert (run.others, run.directories, run.shown()) == ([], [], "")


def test_a_run_that_ends_meanwhile_keeps_nothing(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real = seed.fill

    def ends(context: Context, caches: Caches, options: seed.Options) -> tuple[Caches, list[WarmstartError]]:
        filled = real(context, caches, options)
        runs.forget(run.state, 7)
        return filled

    monkeypatch.setattr(seed, "fill", ends)
    with pytest.raises(StepHasNoCaches):
        run.provide()
    assert (run.directories, run.shown(), os.listdir(run.state)) == ([], "", [])


def killed_in(act: Callable[[], object]) -> None:
    """Make caches in a process that is killed on the way."""
    pid = os.fork()
    if not pid:
        try:
            act()
        finally:
            os._exit(1)
    os.waitpid(pid, 0)


@pytest.mark.threat(60)
@pytest.mark.parametrize("place", ["save", "ensure_dir", "_build", "seed", "save again", "_show"])
def test_a_maker_that_dies_costs_the_next_one_nothing(run: Run, monkeypatch: pytest.MonkeyPatch, place: str) -> None:

    def dies(*_: object, **__: object) -> None:
        os._exit(0)

    def make() -> None:
        module, name = {"seed": (seed, "fill")}.get(place, (caches, place))
        if place.startswith("save"):
            real, calls = runs.save, []

            def save(state: str, run: Any) -> None:  # noqa: ANN401 - the state's
                calls.append(run)
                real(state, run)
                if len(calls) == (2 if place.endswith("again") else 1):
                    dies()

            monkeypatch.setattr(runs, "save", save)
        else:
            monkeypatch.setattr(module, name, dies)
        run.provide()

    killed_in(make)
    (begun,) = run.others
    key = run.provide()
    is_whole = place in {"save again", "_show"}
    assert (key == begun.key, [made.key for made in run.others], run.directories) == (is_whole, [key], [key])
    assert run.shown() == f"{key} /store/a.sqsh\n"


def test_the_end_of_a_run_ends_who_makes_caches(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    reads, writes = os.pipe()

    def stays(*_: object) -> None:
        os.write(writes, b"x")
        time.sleep(60)

    monkeypatch.setattr(caches, "_build", stays)
    pid = os.fork()
    if not pid:
        run.provide()
        os._exit(1)
    assert os.read(reads, 1) == b"x"
    record = runs.load(run.state, 7)
    assert record
    context = run.context
    assert release(context._replace(run=record), None).failure is None
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM
    assert not os.path.exists(record.directory)


def test_who_asks_while_it_is_made_waits(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    real, begun, go = seed.fill, threading.Event(), threading.Event()

    def slow(context: Context, caches: Caches, options: seed.Options) -> tuple[Caches, list[WarmstartError]]:
        begun.set()
        assert go.wait(20)
        return real(context, caches, options)

    monkeypatch.setattr(seed, "fill", slow)
    keys: list[str] = []
    steps = [threading.Thread(target=lambda: keys.append(run.provide())) for _ in range(2)]
    steps[0].start()
    assert begun.wait(20)
    steps[1].start()
    with pytest.raises(StepHasNoCaches, match="another step still makes"):
        caches.provide(run.context._replace(deadline=after(0.3)), IMAGE, [])
    go.set()
    for step in steps:
        step.join()
    assert keys == [run.others[0].key] * 2


def test_a_step_asks_again_while_something_is_on_its_way(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first one waits for that. The view says when nobody need ask any more."""
    waited: list[bool] = []

    def provide(_context: Context, _image: StepImage, _namespaces: list[int], deadline: Deadline) -> bool:
        waited.append(deadline.left() > 1)
        return len(waited) < 3

    monkeypatch.setattr(type(run.context.policy), "parts", lambda *_: ["x"])
    monkeypatch.setattr(wing, "load", lambda _: SimpleNamespace(provide=provide))
    shown = []
    for _ in range(3):
        found = run.context._replace(run=runs.load(run.state, 7) or run.context.run)
        key = run.provide()
        caches.provide_by_wings(found, IMAGE, [], key, 60.0)
        shown.append(run.shown())
    assert waited == [True, False, False]
    line = f"{key} /store/a.sqsh\n"
    assert shown == [f"{line}{view.MORE}", f"{line}{view.MORE}", line]


def test_what_cannot_be_seeded_is_undone(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:

    def refuse(*_: object) -> DiskFailed:
        return DiskFailed(what="the job gets no cache", problem="quota")

    monkeypatch.setattr(seed, "_give_away", refuse)
    with pytest.raises(WarmstartError, match="quota"):
        run.provide()
    assert (run.others, run.directories, run.shown()) == ([], [], "")


def test_what_steps_would_not_see_is_undone(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def shown(seeding: Any, profiles: list[Any]) -> None:  # noqa: ANN401 - `_Seeding.show`
        seeding._options.attach([cache.name for cache in profiles])

    def refuse(*_: object) -> None:
        raise PermissionError(1, "no")

    monkeypatch.setattr(seed._Seeding, "show", shown)
    monkeypatch.setattr(caches, "_attach", refuse)
    with pytest.raises(PermissionError):
        run.provide()
    assert (run.others, run.directories, run.shown()) == ([], [], "")


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Run]:
    """Give a run on three nodes, which show the same of DeepGEMM."""
    monkeypatch.setattr(view, "allow_reading", lambda *_: None)
    monkeypatch.setattr(vote, "PROPOSAL_S", 0.5)
    return {node: Run(tmp_path, node, "n[1-3]", "deepgemm") for node in ("n1", "n2", "n3")}


def asked(job: dict[str, Run], *nodes: str, on: str) -> dict[str, str]:
    """Have a step on some nodes ask on these, one after the other; return whose caches each has."""
    keys = {node: job[node].provide(IMAGE._replace(nodes=on)) for node in nodes}
    return {node: one.nodes for node, key in keys.items() for one in job[node].others if one.key == key}


def test_a_set_serves_steps_on_its_nodes(job: dict[str, Run]) -> None:
    """On some of them, and on one; a later step reads of it in the view. Its first node takes down what was said."""
    assert asked(job, "n1", "n2", "n3", on="n[1-3]") == dict.fromkeys(job, "n[1-3]")
    assert asked(job, "n2", "n3", on="n[2-3]") == {"n2": "n[1-3]", "n3": "n[1-3]"}
    assert asked(job, "n3", on="n3") == {"n3": "n[1-3]"}
    (made,) = job["n3"].others
    assert job["n3"].shown(nodes="n[2-3]") == job["n3"].shown(nodes="n3") == f"{made.key} /store/a.sqsh\n"
    assert [run.topics for run in job.values()] == [["test.7.0/step-"], [], []]
    context = job["n1"].context
    assert os.listdir(f"{context.policy.paths.store}/runs/test.7.0")
    context.store.run(after(5), barrier.take_down, job["n1"].topics[0])
    assert os.listdir(f"{context.policy.paths.store}/runs") == []


def test_a_step_on_other_nodes_has_caches_of_its_own(job: dict[str, Run]) -> None:
    assert asked(job, "n2", on="n2") == {"n2": "n2"}
    assert asked(job, "n1", "n2", on="n[1-2]") == {"n1": "n[1-2]", "n2": "n[1-2]"}
    assert asked(job, "n2", "n3", on="n[2-3]") == {"n2": "n[2-3]", "n3": "n[2-3]"}
    assert [bool(run.topics) for run in job.values()] == [True, True, False]


@pytest.mark.parametrize(("first", "whose"), [("n2", "n[2-3]"), ("n3", "n[1-3]")])
def test_nodes_that_two_steps_reach_in_another_order_share_caches(job: dict[str, Run], first: str, whose: str) -> None:
    """A step on all nodes has begun on n3 alone: what is said of the step on two nodes first holds for both."""
    job["n1"].provide(IMAGE._replace(nodes="n[1-3]"))
    job["n3"].provide(IMAGE._replace(nodes="n[1-3]"))
    both = [first, *({"n2", "n3"} - {first})]
    assert asked(job, *both, on="n[2-3]") == dict.fromkeys(both, whose)


def test_a_step_that_is_cancelled_leaves_no_other_waiting_for_its_nodes(
    job: dict[str, Run], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has begun caches for all nodes on the first one. A step on two of them has its own: the third says nothing."""

    def cancelled() -> None:
        monkeypatch.setattr(seed, "fill", lambda *_: os._exit(0))
        job["n1"].provide(IMAGE._replace(nodes="n[1-3]"))

    killed_in(cancelled)
    assert [one.nodes for one in job["n1"].others] == ["n[1-3]"]
    assert asked(job, "n1", "n2", on="n[1-2]") == {"n1": "n[1-2]", "n2": "n[1-2]"}
    assert asked(job, "n1", "n2", "n3", on="n[1-3]") == dict.fromkeys(job, "n[1-3]")


@pytest.mark.threat(60)
@pytest.mark.parametrize("said", ["", "n[1-4]", "n[2-3]", "n9", "n[1-9][1-9]", "x" * 9000, "n[1-"])
def test_nodes_that_are_not_the_jobs_count_as_one(job: dict[str, Run], said: str) -> None:
    assert asked(job, "n1", on=said) == {"n1": "n1"}
    assert not os.path.exists(f"{job['n1'].context.policy.paths.store}/runs")


def test_a_node_whose_peers_are_lost_goes_on(job: dict[str, Run]) -> None:
    """After the bound: nothing is proposed, and the caches are cold. Nor does it need the board."""
    assert asked(job, "n2", on="n[1-2]") == {"n2": "n[1-2]"}
    assert asked(job, "n1", on="n[1-2]") == {"n1": "n[1-2]"}
    shutil.rmtree(job["n1"].context.policy.paths.store)
    assert asked(job, "n3", on="n[2-3]") == {"n3": "n[2-3]"}


def test_who_shows_nothing_from_the_store_need_not_agree(job: dict[str, Run]) -> None:
    """A job that starts cold on purpose, or whose tools do not compile in step: any caches of the image will do."""
    for run in job.values():
        runs.save(run.state, run.context.run._replace(fresh=True))
        run.context = run.context._replace(run=run.context.run._replace(fresh=True))
    assert asked(job, "n2", on="n[1-2]") == asked(job, "n2", on="n[2-3]") == {"n2": "n[1-2]"}
