"""A prolog takes the tree of its job's image, or waits for it; what fails there concerns no job."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.lib.bundles import ASKER
from tests.lib.runs import a_context, changed
from warmstart import plan, shelf
from warmstart.host import files
from warmstart.images import unpacks
from warmstart.images.choice import recipe
from warmstart.images.reference import parse
from warmstart.images.store.layout import UNPACK_S, image_name
from warmstart.images.unpacked import ImageKey, shelf_of
from warmstart.images.unpacks import UNPACKS, UnpackRequest
from warmstart.paths import NodePaths
from warmstart.queue import Item, Queue
from warmstart.run import state as runs
from warmstart.steps import unpack
from warmstart.steps.contract import Outcome

DIGEST = "sha256:" + "ab" * 32
OPTIONS = unpack.Options(parse("reg.io/a:1"), "", 0.0)


class Place:
    """A job whose image is in the store, on a node with a shelf, where no program runs."""

    def __init__(self, root: Path) -> None:
        context = a_context(root)
        paths = NodePaths(f"{root}/n1", f"{root}/n1", "/nowhere")
        os.makedirs(f"{paths.state}/7", mode=0o700)
        (root / "shelf").mkdir()
        self.context = context._replace(paths=paths, run=changed(context.run, image=DIGEST))
        self.queue = Queue(paths, UNPACKS)
        self.policy(shelf=f"{root}/shelf")

    def policy(self, **paths: Any) -> None:  # noqa: ANN401 - fields of Paths
        policy = self.context.policy
        self.context = self.context._replace(policy=policy._replace(paths=policy.paths._replace(**paths)))

    @property
    def shelf(self) -> str:
        return shelf_of(self.context.policy, "n1")

    @property
    def key(self) -> ImageKey:
        return ImageKey(image_name(DIGEST, f"{os.uname().machine}.{recipe(self.context.policy.images.importer)}"))

    def make(self) -> None:
        os.makedirs(f"{self.shelf}/{self.key.tree}/tree")

    def run(self, **options: Any) -> Outcome:  # noqa: ANN401 - fields of Options
        return unpack.run(self.context, OPTIONS._replace(**options))

    def skipped(self, **options: Any) -> str:  # noqa: ANN401 - fields of Options
        """Run the step, which finds no tree; return why."""
        outcome = self.run(**options)
        assert shelf.held(self.context.paths.state) == {}
        return str(outcome.detail["reason"])

    def fail(self) -> None:
        """Have an attempt fail."""
        begun = self.queue.begin(self.queue.all()[0])
        assert begun
        self.queue.put(begun, UnpackRequest("reg.io/a:1", *self.key, ASKER, "too large"))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    monkeypatch.setattr(Queue, "start_due", lambda _: None)
    monkeypatch.setattr(unpacks, "START_S", 0.0)
    return Place(tmp_path)


def during(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Have something happen while somebody waits."""
    monkeypatch.setattr(time, "sleep", lambda _: act())


def test_a_tree_that_is_there_is_taken_and_noted_until_the_run_ends(place: Place) -> None:
    """The state names it before anything is shown; nothing is asked for."""
    place.make()
    os.utime(f"{place.shelf}/{place.key.tree}", (1, 1))
    outcome = place.run()
    assert outcome.detail == {"tree": place.key.tree}
    state = place.context.paths.state
    assert shelf.held(state) == {place.key.tree: [7]}
    assert os.stat(f"{place.shelf}/{place.key.tree}").st_mtime > 1  # it is a use
    assert not os.path.exists(place.context.paths.queue)
    runs.forget(state, 7)
    assert shelf.held(state) == {}


def test_a_private_image_is_found_in_its_scope_alone(place: Place) -> None:
    place.make()
    assert place.skipped(private="team", later=1e9) == unpacks.TOO_LONG


def test_who_takes_a_tree_waits_for_an_eviction_and_for_nobody_else(place: Place) -> None:
    place.make()
    with files.opened_dir(place.shelf) as fd:
        assert files.try_flock(fd)
        assert "still being evicted" in place.skipped(later=1e9)
        assert files.try_flock(fd, shared=True)
        assert "tree" in place.run().detail


def test_a_prolog_waits_until_its_tree_is_there(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever unpacks it knows that somebody waits."""
    awaited = []

    def make() -> None:
        with files.opened_dir(place.shelf) as fd:
            awaited.append(unpacks.is_awaited(fd, place.key.tree))
        place.make()

    during(monkeypatch, make)
    assert "tree" in place.run().detail
    assert awaited == [True]
    with files.opened_dir(place.shelf) as fd:
        assert not unpacks.is_awaited(fd, place.key.tree)
        assert not unpacks.is_awaited(fd, "nobody's")
    (item,) = place.queue.all()
    asked = ("reg.io/a:1", *place.key, (7, os.getuid(), "ws-alice", "test"), "")
    assert place.queue.read(item, UnpackRequest) == asked


@pytest.mark.parametrize(
    ("happens", "told"),
    [
        (Place.fail, "too large"),
        (lambda place: place.queue.drop(place.key.tree), "nobody is at it any more"),
        (lambda place: place.queue.begin(place.queue.all()[0]), "its process has died"),
    ],
)
def test_a_job_waits_no_longer_than_somebody_is_at_it(
    place: Place, monkeypatch: pytest.MonkeyPatch, happens: Callable[[Place], object], told: str
) -> None:
    during(monkeypatch, lambda: happens(place))
    assert place.skipped() == told


def test_an_attempt_that_begins_while_it_is_looked_at_is_waited_for(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It gets another name between its being found and being read."""
    read = Queue.read

    def read_late(queue: Queue, item: Item, form: type[UnpackRequest]) -> UnpackRequest | None:
        if not item.attempts:
            assert queue.begin(item)
        else:
            place.make()
        return read(queue, item, form)

    monkeypatch.setattr(unpacks, "START_S", 60.0)
    monkeypatch.setattr(Queue, "read", read_late)
    assert "tree" in place.run().detail


def test_an_attempt_that_is_due_is_begun(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """By whoever waits, if its program has gone."""
    started: list[Item] = []
    monkeypatch.setattr(Queue, "start_due", lambda queue: started.extend(queue.due()))
    during(monkeypatch, lambda: place.make() if len(started) > 1 else None)
    assert "tree" in place.run().detail
    assert {item.key for item in started} == {place.key.tree}


def test_nobody_waits_longer_than_the_policy_says(place: Place) -> None:
    """The item goes on."""
    assert place.skipped(later=1e9) == unpacks.TOO_LONG
    assert len(place.queue.all()) == 1


@pytest.mark.report
@pytest.mark.parametrize("shelf", ["shelf", "disk/deep/shelf"])
def test_nobody_makes_the_shelf(place: Place, tmp_path: Path, shelf: str) -> None:
    """Nor what is above it: its disk is not mounted, and what is unpacked would fill the root file system."""
    (tmp_path / "shelf").rmdir()
    place.policy(shelf=str(tmp_path / shelf))
    before = sorted(tmp_path.iterdir())
    with pytest.raises(FileNotFoundError, match="its disk may not be mounted"):
        unpacks.ask(place.context.policy, place.context.paths, "reg.io/a:1", place.key, ASKER)
    assert "its disk may not be mounted" in place.skipped()
    assert sorted(tmp_path.iterdir()) == before
    assert place.queue.all() == []


def test_without_a_shelf_nothing_is_asked_for(place: Place) -> None:
    place.policy(shelf=None)
    assert unpacks.ask(place.context.policy, place.context.paths, "reg.io/a:1", place.key, ASKER) == (
        "the policy names no shelf (paths.shelf)"
    )
    assert place.queue.all() == []


def test_a_shelf_that_others_can_change_is_not_used(place: Place, tmp_path: Path) -> None:
    (tmp_path / "shelf").chmod(0o777)
    assert place.skipped() == "can be written by others and is not sticky"


@pytest.mark.parametrize("image", ["", "claimed:reg.io/a:1"])
def test_what_is_not_in_the_store_is_not_unpacked(place: Place, image: str) -> None:
    """No image, or one that is left to pyxis."""
    place.context = place.context._replace(run=changed(place.context.run, image=image))
    place.skipped()
    assert not os.path.exists(place.shelf)


def test_its_wait_is_a_part_of_the_budget_where_there_is_a_shelf(place: Place) -> None:
    policy = place.context.policy
    place.policy(shelf=None)
    assert plan.prolog_budget(policy) == plan.prolog_budget(place.context.policy) + UNPACK_S
