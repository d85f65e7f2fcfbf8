"""A publisher that supersedes an entry, killed at every call: readers see the old version or the new one, whole."""

from __future__ import annotations

import hashlib
import os
import time
from functools import partial
from itertools import count
from pathlib import Path

import filelock  # noqa: F401 - so that not every child imports it
import pytest

from tests.lib.bundles import OWNER, draft, namespace
from tests.lib.vanish import WHENS, vanishes
from warmstart.store import bundles, maintenance
from warmstart.store.manifest import Base, File, content_digest


def taken(store: Path) -> str:
    """Return the file as readers get it, "" where there is none."""
    offers = bundles.offers(str(store), ["user-1"], "numba", "ns", OWNER).offers
    if not offers:
        return ""
    (offer,) = offers
    fd = os.memfd_create("copy")
    bundles.fetch(namespace(store), offer, fd)
    content = os.pread(fd, 1000, 0).decode()
    os.close(fd)
    return content


def publish(store: Path, content: str, based_on: str) -> str | None:
    """Publish the file; `based_on` is the content that its job was seeded with."""
    fd = os.memfd_create("bundle")
    os.write(fd, content.encode())
    bases = {"file": Base("user-1", content_digest(files(based_on)))} if based_on else {}
    made = bundles.publish_bundle(
        namespace(store), fd, draft()._replace(entries={"file": files(content)}, based_on=bases), OWNER
    )
    os.close(fd)
    return made.bundle


def files(content: str) -> dict[str, File]:
    """Return the entry's one file."""
    return {"file.nbi": File(len(content), hashlib.sha256(content.encode()).hexdigest(), 17)}


@WHENS
def test_a_replacement_killed_at_any_step(tmp_path: Path, when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is there after a death is what the next job is seeded with and changes; maintenance leaves that alone.

    A publisher that dies between its manifest and the index has published; the next one finds out, and gives way.
    """
    content = "v0"
    publish(tmp_path, content, "")
    for call in count(1):
        before = taken(tmp_path)
        assert before == content
        newer = f"{before}+{call}"
        died = vanishes(lambda newer=newer, before=before: publish(tmp_path, newer, before), call, when)  # type: ignore[misc]
        content = taken(tmp_path)
        assert content in (before, newer, f"{before}+{call - 1}")
        if not died:
            assert call > 10
            break
    before, content = content, content + "+last"
    assert publish(tmp_path, content, before)
    assert taken(tmp_path) == content
    monkeypatch.setattr(maintenance, "GRACE_SECONDS", -60.0)
    monkeypatch.setattr(maintenance, "ORPHAN_SECONDS", -60.0)
    where = namespace(tmp_path)
    maintenance.remove(where, OWNER, maintenance.superseded(where, OWNER, time.time()))
    maintenance.sweep(where, OWNER, time.time())
    assert taken(tmp_path) == content
    assert len(list(Path(where.path).glob("*Z-*.sqsh"))) == 1


@WHENS
def test_a_removal_killed_at_any_step(tmp_path: Path, when: str) -> None:
    """The version that a bundle took the place of is not seen again while that bundle is removed."""
    for call in count(1):
        store = tmp_path / str(call)
        store.mkdir()
        publish(store, "stale", "")
        newer = publish(store, "newer", "stale")
        assert newer
        died = vanishes(partial(maintenance.remove, namespace(store), OWNER, [newer]), call, when)
        bundles.reindex(namespace(store), OWNER)
        assert taken(store) in ("newer", "")
        if not died:
            assert call > 10
            assert taken(store) == ""
            break
