"""A store and bundles for unit and integration tests in which the bundles' content does not matter."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from warmstart.caches.store import bundles
from warmstart.caches.store.bundles import Draft, Published
from warmstart.caches.store.layout import File, Namespace
from warmstart.queue import Asker

OWNER = "n1-test"
ASKER = Asker(7, 64201, "ws-alice", "test")


def namespace(store: Path, scope: str = "user-1") -> Namespace:
    """Return the namespace that tests publish to."""
    return Namespace(str(store), scope, "numba", "ns")


def draft(*entries: str, user: str = "a", uid: int = 1000) -> Draft:
    """Return a bundle's draft with entries of one file each."""
    files = {entry: {f"{entry}.nbi": File(3, "ab" * 32, 17)} for entry in entries}
    return Draft(user, uid, 7, files, facts={"cpu": "x"})


@contextmanager
def memory_file(content: bytes) -> Iterator[int]:
    """Give the descriptor of a file with this content."""
    fd = os.memfd_create("bundle")
    try:
        os.write(fd, content)
        yield fd
    finally:
        os.close(fd)


def publish(
    store: Path,
    *entries: str,
    scope: str = "user-1",
    content: bytes = b"",
    profile: str = "numba",
    user: str = "a",
    uid: int = 1000,
) -> Published:
    """Publish a bundle with these entries; without `content` its bytes are its entries' names."""
    where = namespace(store, scope)._replace(profile=profile)
    with memory_file(content or " ".join(entries).encode()) as fd:
        return bundles.publish(where, OWNER, fd, draft(*entries, user=user, uid=uid), 0)
