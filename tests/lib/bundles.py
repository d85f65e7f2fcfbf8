"""A store and bundles for unit and integration tests in which the bundles' content does not matter."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from warmstart.queue import Asker
from warmstart.store import bundles
from warmstart.store.bundles import Offer, Published
from warmstart.store.layout import Namespace
from warmstart.store.manifest import Draft, Entries, File, Producer

OWNER = "n1-test"
ASKER = Asker(7, 64201, "ws-alice", "test")
PRODUCER = Producer(job=7, user="a", uid=1000, node="n1", cluster="c")


def namespace(store: Path, scope: str = "user-1") -> Namespace:
    """Return the namespace that tests publish to."""
    return Namespace(str(store), scope, "numba", "ns")


def draft(*entries: str) -> Draft:
    """Return a manifest's draft with entries of one file each."""
    files = {entry: {f"{entry}.nbi": File(3, "ab" * 32, 17)} for entry in entries}
    return Draft(PRODUCER, {"cpu": "x"}, files)


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
    store: Path, *entries: str, scope: str = "user-1", content: bytes = b"bytes", profile: str = "numba"
) -> Published:
    """Publish a bundle with these entries."""
    with memory_file(content) as fd:
        return bundles.publish_bundle(namespace(store, scope)._replace(profile=profile), fd, draft(*entries), OWNER)


def add_offered(found: dict[str, str], offer: Offer, files: Entries) -> None:
    """Add an offered bundle's entries to `found`. Its files hold each of them, and no other bundle offers one."""
    for entry in offer.entries:
        assert entry in files
        assert entry not in found
        found[entry] = offer.bundle
