"""Stand-ins for the surroundings of a single flight: a worker in this process, and an importer that is never called."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar, cast

from tests.lib.policy_site import defaults
from tests.lib.superblocks import image
from warmstart.host import wire
from warmstart.host.deadline import Deadline
from warmstart.host.identity import Identity
from warmstart.host.worker import Worker
from warmstart.images.importers.base import Importer
from warmstart.images.query import Requester, Site
from warmstart.images.reference import Reference
from warmstart.images.scratch import Caps
from warmstart.images.store import published
from warmstart.images.store.client import ImageStoreClient
from warmstart.paths import NodePaths
from warmstart.store.client import StoreClient

KEEP = defaults().images.keep._replace(high=99, low=98, lease=600)
RULES = defaults().images._replace(tag_ttl=600, wait=60, keep=KEEP)
CAPS = Caps(1 << 30, 100_000)
KIND = f"{os.uname().machine}.none1"
HEX = "ab" * 32  # the digest of the sample image
NO_NODE = NodePaths("/nowhere", "/nowhere", "/nowhere")  # of a site that imports by itself
NOBODY = Identity("nobody", 65534, 65534)
P = ParamSpec("P")
R = TypeVar("R")


class InlineWorker:
    """Calls the functions in this process. `calls` has their names."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def run(self, deadline: Deadline, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call the function. Its result passes through JSON and is checked, as a real worker's is."""
        assert isinstance(deadline, Deadline)
        self.calls.append(function.__name__)
        answer = json.loads(json.dumps(function(*args, **kwargs)))
        result: R = wire.decode(wire.result_of(function), answer)
        return result

    @contextmanager
    def begin(
        self, deadline: Deadline, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> Iterator[Callable[[Deadline], R]]:
        """Call the function, and release the locks of a producer at the end."""
        try:
            yield lambda _until: self.run(deadline, function, *args, **kwargs)
        finally:
            release()

    def _replace(self, **_: object) -> InlineWorker:
        return self


def release() -> None:
    """Release the locks of producers that this process has, as its end would."""
    while published._held:
        published._held.pop().release()


class NoImporter:
    """An importer that must not be called."""

    name = "none"
    identity = NOBODY


class Elsewhere(NamedTuple):
    """A place that notes in `seen` what it is told."""

    seen: list[str]
    unheld: str = ""  # why others cannot be kept from importing

    @contextmanager
    def held(
        self,
        reference: Reference,
        store: ImageStoreClient,  # noqa: ARG002
        deadline: Deadline,  # noqa: ARG002
        tell: Callable[[str], None],
    ) -> Iterator[str]:
        """Note the begin and the end."""
        tell("waiting for others")
        self.seen.append(f"held {reference.canonical()}")
        yield self.unheld
        self.seen.append("released")

    def show(self, reference: Reference, path: str, store: ImageStoreClient, deadline: Deadline) -> None:  # noqa: ARG002
        self.seen.append(f"{reference.canonical()} is {os.path.basename(path)}")

    def forget(self, store: ImageStoreClient, deadline: Deadline) -> None:  # noqa: ARG002
        self.seen.append("forgets")


def client(store: Path, worker: InlineWorker | None = None) -> ImageStoreClient:
    """Return the client of a store in a directory."""
    return ImageStoreClient(cast(Worker, worker or InlineWorker()), str(store))


def whole_store(store: Path, worker: InlineWorker | None = None) -> StoreClient:
    """Return the client of the store that also has the bundles."""
    made = StoreClient(NOBODY, str(store), "n1")
    made.worker = cast(Worker, worker or InlineWorker())
    return made


def site(store: Path, workspace: Path) -> Site:
    """Return a site with a store in a directory and no programs."""
    (store.parent / "n1").mkdir(exist_ok=True)
    return Site(
        store=client(store),
        importer=lambda: cast(Importer, NoImporter()),
        validator=NOBODY,
        rules=RULES,
        recipe="none1",
        workspace=str(workspace),
        uses=str(store.parent / "uses"),
        requester=Requester("n1", "r1", 7),
        paths=NodePaths(str(store.parent / "n1"), str(store.parent / "n1"), "/nowhere"),
    )


def put_image(site: Site) -> None:
    images = Path(site.store.path) / "images"
    images.mkdir(exist_ok=True)
    (images / f"{HEX}.{KIND}.sqsh").write_bytes(image())
