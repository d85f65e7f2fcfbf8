"""The acts of images: an import into a store that refuses root, overlays of a run, and evictions from the shelf."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from unittest import mock

from tests.faults.acts import Act
from tests.lib.accounts import IMPORT
from tests.lib.faults import Done, Fault, Faults
from tests.lib.image_place import Place, Ready, Store, leftovers, opened_place, processes_of, squashfs
from tests.lib.image_site import RULES
from tests.lib.overlay_place import Node as OverlayNode
from tests.lib.overlay_place import a_node, content
from tests.lib.shelf_site import ShelfSite
from warmstart.host import process
from warmstart.host.deadline import after
from warmstart.images import unpacking
from warmstart.images.imports import making
from warmstart.images.query import Site
from warmstart.images.store import eviction, published
from warmstart.images.store.layout import NOBODY

SEEDED = {"k/one": b"1", "k/two": b"2", "top": b"t"}


class ImportAct(Act):
    """An import by root into a store that refuses every uid but its owner's. Each time the store is new."""

    def __init__(self, place: Place, squashed: Store) -> None:
        self._place, self._squashed, self._numbers = place, squashed, count(1)
        self._ready = squashfs(place.base / "ready.sqsh", 40_000)

    def prepare(self) -> None:
        """Make an empty store."""
        name = str(next(self._numbers))
        self._store = Store(self._squashed.path / name, self._place.own(self._squashed.source / name))

    def _site(self, run: str) -> Site:
        importer = partial(Ready, self._place.identity(IMPORT), str(self._ready))
        return self._place.site(self._store.path, importer=importer, run_id=run)

    def run(self, fault: Fault | None = None, stop_at: int = 0) -> Done:
        """Import the image."""

        def obtain() -> int:
            site = self._site("killed")
            making.obtain(self._place.image("team/killed:1"), site, after(60))
            return 0

        domains = {"store": str(self._store.path), "workspace": str(self._place.base / "workspace")}
        return Faults(domains, fault, stop_at).run(obtain, {})

    def check(self, _done: Done, _fault: Fault | None) -> list[str]:
        """Import it again: there is one whole image. Maintenance, and another import, remove what is left."""
        site = self._site("next")
        with mock.patch.object(published, "ABANDONED_S", -1.0):
            found = making.obtain(self._place.image("team/killed:1"), site, after(30))
            site.store.run(after(10), eviction.make_room, 0, RULES.keep, NOBODY)
            problem = site.store.run(after(10), published.check_bytes, found.name, "t").problem
            images = list((self._store.source / "images").glob("*.sqsh"))
            if self._place.left_in_scratch():
                making.obtain(self._place.image("team/other:1"), site, after(30))
        wrong = [problem] if problem else []
        if [path.read_bytes() for path in images] != [self._ready.read_bytes()]:
            wrong.append(f"{images} are there")
        left = [*leftovers(self._store.source), *self._place.left_in_scratch()]
        left += map(str, processes_of(self._place.accounts[IMPORT].uid, self._place.base))
        return wrong + [f"{name} is left" for name in left]


class ShowAct(Act):
    """A prolog seeds a run by an overlay, in which a file is hidden, so that there are whiteouts."""

    def __init__(self, node: OverlayNode) -> None:
        self._node, self._numbers = node, count(1)
        self._copies = node.bundle(SEEDED), node.bundle({"k/one": b"older", "top": b"older"})
        self._run = self._node.run("0.aaaaaaaa")  # the node mounts the bundle once
        self._show()
        self._run.take_down()

    def prepare(self) -> None:
        """Make a run."""
        self._run = self._node.run(f"{next(self._numbers)}.aaaaaaaa")

    def run(self, fault: Fault | None = None, stop_at: int = 0) -> Done:
        """Mount the overlay."""
        return self._child(self._show, fault, stop_at)

    def _show(self) -> int:
        self._run.show(*self._copies, hidden=["k/two"])
        return 0

    def _child(self, act: Callable[[], int], fault: Fault | None, stop_at: int) -> Done:
        return Faults({"workspace": str(self._node.base)}, fault, stop_at).run(act, {})

    def check(self, _done: Done, _fault: Fault | None) -> list[str]:
        """Take down what there is: nothing is left, and the bundle serves the next run."""
        wrong = [f"{name} is used" for name in self._run.take_down()] if self._run.path.exists() else []
        wrong += [f"{point} is mounted" for point in self._left()]
        self.prepare()
        self._show()
        if content(self._run.cache) != {"k/one": b"1", "top": b"t"}:
            wrong.append("the next run has other files")
        self._run.take_down()
        return wrong

    def _left(self) -> list[str]:
        """Return the mounts other than the node's own of the bundle."""
        own = {f"layers/{copy.row.sha256}" for copy in self._copies}
        return [point for point in self._node.mounts() if point not in own]


class TakeDownAct(ShowAct):
    """An epilog takes the overlay down."""

    def prepare(self) -> None:
        """Make a run with an overlay."""
        super().prepare()
        self._show()

    def run(self, fault: Fault | None = None, stop_at: int = 0) -> Done:
        """Unmount and remove it."""
        return self._child(self._take_down, fault, stop_at)

    def _take_down(self) -> int:
        return len(self._run.take_down())

    def check(self, _done: Done, _fault: Fault | None) -> list[str]:
        """Take down what is left."""
        wrong = [f"{name} is used" for name in self._run.take_down()] if self._run.path.exists() else []
        return wrong + [f"{point} is mounted" for point in self._left()]


class ShelfEvictionAct(Act):
    """Maintenance evicts unpacked images from a node's shelf. A run has one of three."""

    def __init__(self, node: ShelfSite) -> None:
        self._node = node
        self._keys = [node.publish_image(node.image(f"image{number}")) for number in range(3)]

    def prepare(self) -> None:
        """Have all three on the shelf, and a policy that keeps none."""
        node = self._node
        node.policy_of()
        for key in self._keys:
            if not os.path.exists(node.shelf / key.tree):
                assert (node.ask(key), node.unpack(key)) == ("", 0)
        assert node.take(self._keys[0])
        node.policy_of(keep="1B")
        self._policy = node.policy

    def run(self, fault: Fault | None = None, stop_at: int = 0) -> Done:
        """Evict."""
        return self._node.run(self._prune, fault=fault, stop_at=stop_at)

    def _prune(self) -> int:
        unpacking.prune(self._policy, self._node.paths)
        return 0

    def check(self, _done: Done, _fault: Fault | None) -> list[str]:
        """Evict again: what the run has stays, and nothing else; no half tree has a name."""
        wrong = self._half()
        again = self._node.run(self._prune)
        there = [number for number, key in enumerate(self._keys) if os.path.exists(self._node.shelf / key.tree)]
        if again.status != 0 or there != [0]:
            wrong.append(f"{there} are there, status {again.status}: {again.stderr}")
        return [*wrong, *self._half(), *(f"{name} is left" for name in self._node.left())]

    def _half(self) -> list[str]:
        trees = [self._node.shelf / tree for tree in os.listdir(self._node.shelf) if "." not in tree]
        return [
            f"{tree} is half"
            for tree in trees
            if not ((tree / "about.json").exists() and (tree / "tree/usr/greeting").read_text().startswith("hello"))
        ]


@contextmanager
def an_import(_base: Path) -> Iterator[Act]:
    """Give the import."""
    with opened_place() as place, place.squashed("killed") as squashed:
        yield ImportAct(place, squashed)


@contextmanager
def a_show(_base: Path) -> Iterator[Act]:
    """Give an overlay's making."""
    with a_node() as node:
        yield ShowAct(node)


@contextmanager
def a_take_down(_base: Path) -> Iterator[Act]:
    """Give an overlay's end."""
    with a_node() as node:
        yield TakeDownAct(node)


@contextmanager
def a_shelf_eviction(base: Path) -> Iterator[Act]:
    """Give an eviction."""
    with mock.patch.multiple(process, set_idle=lambda _: None, be_idle=lambda: None):
        yield ShelfEvictionAct(ShelfSite(base))
