"""The producer is killed at every step of an import; whoever comes next gets one whole image, and nothing is left.

A step is a call of the kernel that changes a file system, by the hook or by its store worker. They are counted in a
first run; then each run kills hook and worker at the next one.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.accounts import IMPORT, STORE
from tests.integration.image_place import (
    Place,
    Ready,
    in_child,
    leftovers,
    opened_place,
    processes_of,
    result,
    squashfs,
)
from warmstart.host.deadline import after
from warmstart.host.worker import Worker
from warmstart.images import flight, publishing, space, validity
from warmstart.images.asked import Site

STEPS = ("open", "link", "rename", "unlink", "fsync", "mkdir", "rmdir")
KEEP = {"high": 99, "low": 98, "floor": 0, "lease": 600, "user": 0, "account": 0}
NOBODY = {"uid": -1, "user": "", "account": ""}
TAG = "team/killed:1"


@pytest.fixture(scope="module")
def place(capable_host: None) -> Iterator[Place]:
    """Return accounts and a directory for this module, with a small squashfs to import."""
    with opened_place() as made:
        squashfs(made.base / "ready.sqsh", 40_000)
        yield made


def site_of(place: Place, store: Path, run: str) -> Site:
    """Return node n1's view of a store, with an importer that takes no time."""
    importer = partial(Ready, place.identity(IMPORT), str(place.base / "ready.sqsh"))
    return place.site(store, importer=importer, run_id=run)


class Counter:
    """Steps of a process and its children, in memory that they share; whoever comes to the last one stops there."""

    def __init__(self, last: int) -> None:
        self.last = last
        self._memory = mmap.mmap(-1, 16)

    @property
    def steps(self) -> int:
        """Return how many steps were begun."""
        return int.from_bytes(self._memory[:8], "little")

    @property
    def stopped(self) -> int:
        """Return the pid of the process that has come to the last step, 0 before."""
        return int.from_bytes(self._memory[8:], "little")

    def install(self) -> None:
        """Count from now on, in this process and those that it forks."""
        for name in STEPS:
            setattr(os, name, self._counting(getattr(os, name)))

    def _counting(self, function: Any) -> Any:  # noqa: ANN401 - a function of os
        def call(*arguments: Any, **more: Any) -> Any:  # noqa: ANN401
            if _changes(function.__name__, arguments):
                number = self.steps + 1
                self._memory[:8] = number.to_bytes(8, "little")
                if number == self.last and not self.stopped:
                    self._memory[8:] = os.getpid().to_bytes(8, "little")
                    while True:
                        signal.pause()
            return function(*arguments, **more)

        return call


def killed_at(counter: Counter, work: Callable[[], object]) -> object:
    """Run `work` in a child that is killed, with the process that is at the last step, when that comes."""

    def counted() -> object:
        counter.install()
        return work()

    child = in_child(counted)
    while not counter.stopped and not select.select([child[1]], [], [], 0.002)[0]:
        pass
    if counter.stopped:
        # The hook first: nothing of it may notice that its worker died.
        for pid in {child[0]: 0, counter.stopped: 0}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return result(child)


def _changes(name: str, arguments: tuple[Any, ...]) -> bool:
    return name != "open" or (len(arguments) > 1 and bool(arguments[1] & os.O_CREAT))


def dies(place: Place, store: Path, last: int) -> bool:
    """Import in a child that is killed at a step; False if it never came to that."""

    def work() -> str:
        site = site_of(place, store, "killed")
        with site.worker:
            return flight.obtain(place.image(TAG), site, after(60)).how

    return killed_at(Counter(last), work) is None


def test_killed_at_every_step(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each kill the next one has one whole image, and after upkeep nothing of the dead one is left."""
    whole = (place.base / "ready.sqsh").read_bytes()
    monkeypatch.setattr(publishing, "ABANDONED_S", -1.0)
    imported, last = 0, 1
    while dies(place, store := place.new_store(f"killed-{last}"), last):
        site = site_of(place, store, "next")
        with site.worker:
            found = flight.obtain(place.image(TAG), site, after(30))
            imported += found.how == "imported"
            _look_after(place, site, store)
        images = [path for path in (store / "images").iterdir() if path.suffix == ".sqsh"]
        assert [str(path) for path in images] == [found.path], last
        assert images[0].read_bytes() == whole, last
        assert (leftovers(store), place.left_in_scratch()) == ([], []), last
        last += 1
    assert processes_of(place.accounts[IMPORT].uid) == []
    print(f"{last - 1} steps: imported again after {imported} kills, found whole after the others")  # noqa: T201
    assert 30 < imported < last


def _look_after(place: Place, site: Site, store: Path) -> None:
    """Do what upkeep does, and read every byte; another import removes the dead one's scratch directory."""
    site.worker.call(space.make_room, str(store), 0, KEEP, NOBODY, "", deadline=after(10))
    name = next((store / "images").glob("*.sqsh")).name.removesuffix(".sqsh")
    assert site.worker.call(validity.check_bytes, str(store), name, "t", deadline=after(10))["problem"] == ""
    assert (store / "images" / f"{name}.json").exists()
    if place.left_in_scratch():
        flight.obtain(place.image("team/other:1"), site, after(30))
        for path in (store / "images").glob("*"):
            if path.name.partition(".")[0] != name.partition(".")[0] and path.is_file():
                path.unlink()


def test_killed_at_every_step_of_an_eviction(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image that is going is whole or gone; the next eviction ends what the dead one began."""
    monkeypatch.setattr(publishing, "ABANDONED_S", -1.0)
    owner = place.identity(STORE)
    last = 0
    while True:
        last += 1
        store = place.new_store(f"evicted-{last}")
        site = site_of(place, store, "first")
        with site.worker:
            path = flight.obtain(place.image(TAG), site, after(30)).path
        name = os.path.basename(path).removesuffix(".sqsh")

        def evict(store: Path = store, name: str = name) -> str:
            with Worker(owner) as worker:
                worker.call(space.evict, str(store), name, 600.0, "", True, deadline=after(10))
            return "done"

        ended = killed_at(Counter(last), evict)
        if os.path.exists(path):
            assert Path(path).read_bytes() == (place.base / "ready.sqsh").read_bytes()
        with Worker(owner) as worker:
            worker.call(space.make_room, str(store), 0, {**KEEP, "lease": 0}, NOBODY, "", deadline=after(10))
        assert leftovers(store) == [], last
        if ended:
            break
    assert not os.path.exists(path)
    assert last > 3
