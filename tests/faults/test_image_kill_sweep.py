"""Kill the producer at every step of an import: the next one gets one whole image, and nothing is left over.

The store refuses root's uid. A step is a system call of the hook or its store worker that changes a file system. A
first run counts the steps; then each run kills hook and worker at the next step.
"""

from __future__ import annotations

import mmap
import os
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

import pytest

from tests.lib.accounts import IMPORT, STORE
from tests.lib.image_place import (
    Place,
    Ready,
    Store,
    in_child,
    leftovers,
    opened_place,
    processes_of,
    result,
    squashfs,
)
from tests.lib.image_site import RULES
from warmstart.host.deadline import after
from warmstart.images.imports import making
from warmstart.images.query import Site
from warmstart.images.store import eviction, published
from warmstart.images.store.client import ImageStoreClient
from warmstart.images.store.layout import NOBODY

pytestmark = pytest.mark.threat(6)

STEPS = ("open", "link", "rename", "unlink", "mkdir", "rmdir")
TAG = "team/killed:1"


@pytest.fixture(scope="module")
def place(capable_host: None) -> Iterator[Place]:
    """Return accounts and a directory for this module, with a small squashfs to import."""
    with opened_place() as made:
        squashfs(made.base / "ready.sqsh", 40_000)
        yield made


@pytest.fixture
def squashed(place: Place, request: pytest.FixtureRequest) -> Iterator[Store]:
    """Return a directory for stores that refuses every uid but their owner's."""
    with place.squashed(request.node.name) as made:
        yield made


def new_store(place: Place, squashed: Store, name: str) -> Store:
    return Store(squashed.path / name, place.own(squashed.source / name))


def site_of(place: Place, store: Store, run: str) -> Site:
    """Return node n1's view of a store, with an importer that takes no time."""
    importer = partial(Ready, place.identity(IMPORT), str(place.base / "ready.sqsh"))
    return place.site(store.path, importer=importer, run_id=run)


class Counter:
    """Counts the steps of a process and its children, in shared memory, and stops the process at the last one."""

    def __init__(self, last: int) -> None:
        self.last = last
        self._memory = mmap.mmap(-1, 16)

    @property
    def steps(self) -> int:
        return int.from_bytes(self._memory[:8], "little")

    @property
    def stopped(self) -> int:
        """Return the pid of the process that reached the last step, 0 before."""
        return int.from_bytes(self._memory[8:], "little")

    def install(self) -> None:
        """Start counting, in this process and those that it forks."""
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
    """Run `work` in a child, and kill the child and the process at the last step when it gets there."""

    def counted() -> object:
        counter.install()
        return work()

    child = in_child(counted)
    ended = select.poll()  # a process that has run sweeps of errors may have too many descriptors for select(2)
    ended.register(child[1], select.POLLIN)
    while not counter.stopped and not ended.poll(2):
        pass
    if counter.stopped:
        # The hook first: nothing of it may notice that its worker died.
        for pid in {child[0]: 0, counter.stopped: 0}:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    return result(child)


def _changes(name: str, arguments: tuple[Any, ...]) -> bool:
    return name != "open" or (len(arguments) > 1 and bool(arguments[1] & os.O_CREAT))


def dies(place: Place, store: Store, last: int) -> bool:
    """Obtain the image in a child that is killed at a step. Return False if the child finished first."""

    def work() -> str:
        site = site_of(place, store, "killed")
        with site.store:
            return making.obtain(place.image(TAG), site, after(60)).how

    return killed_at(Counter(last), work) is None


@pytest.mark.parametrize("stride", [6, pytest.param(1, marks=pytest.mark.sweep)])
def test_killed_at_every_step(place: Place, squashed: Store, monkeypatch: pytest.MonkeyPatch, stride: int) -> None:
    """After each kill the next import gets one whole image, and maintenance removes the leftovers.

    `make test` kills at every sixth step, `make test-all` at each.
    """
    whole = (place.base / "ready.sqsh").read_bytes()
    monkeypatch.setattr(published, "ABANDONED_S", -1.0)
    again = 0
    for last in count(1, stride):
        if not dies(place, store := new_store(place, squashed, f"killed-{last}"), last):
            break
        site = site_of(place, store, "next")
        with site.store:
            found = making.obtain(place.image(TAG), site, after(30))
            again += found.how == "imported"
            _look_after(place, site, store)
        images = list((store.source / "images").glob("*.sqsh"))
        assert images == [store.file(found.path)], last
        assert images[0].read_bytes() == whole, last
        assert (leftovers(store.source), place.left_in_scratch()) == ([], []), last
    assert processes_of(place.accounts[IMPORT].uid, place.base) == []
    print(f"{last} steps: imported again after {again} kills, found whole after the others")  # noqa: T201
    assert 30 < again * stride < last


def _look_after(place: Place, site: Site, store: Store) -> None:
    """Run maintenance and read every byte. Another import removes the scratch directory of the killed one."""
    images = store.source / "images"
    site.store.run(after(10), eviction.make_room, 0, RULES.keep, NOBODY)
    name = next(images.glob("*.sqsh")).name.removesuffix(".sqsh")
    assert site.store.run(after(10), published.check_bytes, name, "t").problem == ""
    assert (images / f"{name}.json").exists()
    if place.left_in_scratch():
        making.obtain(place.image("team/other:1"), site, after(30))
        for path in images.glob("*"):
            if path.name.partition(".")[0] != name.partition(".")[0] and path.is_file():
                path.unlink()


def test_killed_at_every_step_of_an_eviction(place: Place, squashed: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(published, "ABANDONED_S", -1.0)
    owner = place.identity(STORE)
    last = 0
    while True:
        last += 1
        store = new_store(place, squashed, f"evicted-{last}")
        site = site_of(place, store, "first")
        with site.store:
            path = store.file(making.obtain(place.image(TAG), site, after(30)).path)

        def evict(store: str = site.store.path, name: str = path.stem) -> str:
            with ImageStoreClient.of(owner, store) as client:
                client.run(after(10), eviction.evict, name, RULES.keep.lease, True)
            return "done"

        ended = killed_at(Counter(last), evict)
        if path.exists():
            assert path.read_bytes() == (place.base / "ready.sqsh").read_bytes()
        with ImageStoreClient.of(owner, site.store.path) as client:
            client.run(after(10), eviction.make_room, 0, RULES.keep._replace(lease=0), NOBODY)
        assert leftovers(store.source) == [], last
        if ended:
            break
    assert not path.exists()
    assert last > 3
