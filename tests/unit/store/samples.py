"""A store and bundles that unit and integration tests share; what is inside a bundle does not matter here."""

import os
from pathlib import Path
from typing import Any

from warmstart.store import bundles
from warmstart.store.layout import Namespace

OWNER = "n1-test"


def namespace(store: Path, scope: str = "user-1") -> Namespace:
    """Return the namespace that tests publish to."""
    return Namespace(str(store), scope, "numba", "ns")


def draft(*entries: str) -> dict[str, Any]:
    """Return a manifest's draft with entries of one file each."""
    return {
        "producer": {"job": 7, "uid": 1000, "user": "a", "node": "n1", "cluster": "c"},
        "facts": {"cpu": "x"},
        "entries": {entry: {f"{entry}.nbi": [3, "ab" * 32, 17]} for entry in entries},
    }


def publish(store: Path, *entries: str, scope: str = "user-1", content: bytes = b"bytes") -> dict[str, Any]:
    """Publish a bundle with these entries; return what `publish_bundle` does."""
    fd = os.memfd_create("bundle")
    try:
        os.write(fd, content)
        return bundles.publish_bundle(namespace(store, scope), fd, draft(*entries), OWNER)
    finally:
        os.close(fd)
