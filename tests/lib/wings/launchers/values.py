"""Values for tests of the wing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from warmstart.host.identity import Identity
from warmstart.host.worker import Worker
from warmstart.images.store.client import ImageStoreClient
from warmstart.wings.launchers.places import Launchers


def client(owner: Identity, store: Path) -> ImageStoreClient:
    """Return a client of a store whose owner may run the wing's functions, too."""
    return ImageStoreClient(Worker(owner), str(store))


def launchers(directory: Path, *, lock: bool = False) -> Callable[[], tuple[Launchers]]:
    """Return what gives a site the launchers of a directory."""
    return lambda: (Launchers(str(directory), lock),)
