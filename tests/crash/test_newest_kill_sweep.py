"""Kill a publisher at every call where the newest file wins: readers see the old file or the new one, whole."""

from __future__ import annotations

import os
import time
from itertools import count
from pathlib import Path

import filelock  # noqa: F401 - so that a sweep does not count what its import does
import pytest

from tests.support.bundles import OWNER, draft, namespace
from tests.support.vanish import vanishes
from warmstart.store import bundles, maintenance


def taken(store: Path) -> tuple[str, str]:
    """Return the bundle that readers take the file from and its content, ("", "") if there is none."""
    offers = bundles.offers(str(store), ["user-1"], "numba", "ns", OWNER).offers
    if not offers:
        return "", ""
    (offer,) = offers
    fd = os.memfd_create("copy")
    bundles.fetch(namespace(store), offer.bundle, offer.sha256, offer.size, fd)
    content = os.pread(fd, 1000, 0).decode()
    os.close(fd)
    return offer.bundle, content


def publish(store: Path, content: str, based_on: str) -> str | None:
    """Publish the file."""
    fd = os.memfd_create("bundle")
    os.write(fd, content.encode())
    made = bundles.publish_bundle(namespace(store), fd, draft("file")._replace(based_on=based_on), OWNER)
    os.close(fd)
    return made.bundle


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_replacement_killed_at_any_step(tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next job starts from what is there and replaces it; maintenance keeps that one.

    A publisher that dies between its manifest and the index has published; the next one notices and gives way.
    """
    content = "v0"
    publish(tmp_path, content, "")
    for call in count(1):
        bundle, before = taken(tmp_path)
        assert before == content
        newer = f"{before}+{call}"
        died = vanishes(lambda newer=newer, bundle=bundle: publish(tmp_path, newer, bundle), call, when)  # type: ignore[misc]
        bundle, content = taken(tmp_path)
        assert content in (before, newer, f"{before}+{call - 1}")
        if not died:
            assert call > 20
            break
    content += "+last"
    assert publish(tmp_path, content, bundle)
    assert taken(tmp_path)[1] == content
    monkeypatch.setattr(maintenance, "GRACE_SECONDS", -60.0)
    monkeypatch.setattr(maintenance, "ORPHAN_SECONDS", -60.0)
    where = namespace(tmp_path)
    maintenance.remove(where, maintenance.superseded(where, OWNER, time.time()), OWNER)
    maintenance.sweep(where, OWNER, time.time())
    assert taken(tmp_path)[1] == content
    assert len(list(Path(where.path).glob("*Z-*.sqsh"))) == 1
