"""The description of a spooled bundle."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from pathlib import Path
from typing import NoReturn

import pytest

from tests.lib.bundles import draft
from tests.lib.policy_site import defaults
from warmstart.harvest import spool
from warmstart.harvest.spool import Spooled, SpoolFailed
from warmstart.host.deadline import after
from warmstart.host.identity import Identity
from warmstart.store.bundles import Published
from warmstart.store.client import StoreClient
from warmstart.store.layout import StoreFailed
from warmstart.store.manifest import Base, Draft, File

ITEM = Spooled("user-1", "numba", "ns", draft("a"), "7.0a1b2c3d.numba", "ab" * 32)


@pytest.mark.parametrize("based_on", [{}, {"a": Base("site", "ab" * 32)}])
def test_a_spooled_bundle_comes_back_as_it_was(based_on: dict[str, Base]) -> None:
    """What the job was seeded with is kept, too: late as it is, the bundle takes the place of that or of nothing."""
    item = ITEM._replace(draft=ITEM.draft._replace(based_on=based_on, fresh=bool(based_on)))
    data = spool._encode(item)
    assert spool._decode(data) == item
    written = json.loads(data)
    assert written["draft"]["entries"] == {"a": {"a.nbi": [3, "ab" * 32, 17]}}


@pytest.mark.parametrize(
    "change",
    [
        {"draft": None},
        {"draft": {}},
        {"draft": {"producer": {}, "facts": {}, "entries": {}}},
        {"scope": 1},
    ],
)
def test_what_is_damaged_is_said_to_be(change: dict[str, object]) -> None:
    """A damaged description raises `ValueError`, so its bundle is dropped."""
    with pytest.raises(ValueError, match=r"damaged|expected|missing"):
        spool._decode(json.dumps({**json.loads(spool._encode(ITEM)), **change}).encode())
    with pytest.raises(ValueError, match="damaged"):
        spool._decode(b"[]")


def test_a_description_of_a_newer_release(tmp_path: Path) -> None:
    """What it added is ignored; one of another format stays in the spool, and is not taken for a damaged one."""
    written = json.loads(spool._encode(ITEM))
    assert spool._decode(json.dumps({**written, "more": [1]}).encode()) == ITEM
    item = tmp_path / "spool" / "00000000000000000001.1.7.0a1b2c3d.numba"
    item.mkdir(parents=True)
    (item / "bundle.sqsh").touch()
    (item / "draft.json").write_text(json.dumps({**written, "format": 2}))
    store = StoreClient(Identity("me", os.getuid(), os.getgid()), str(tmp_path), "n1-test")
    rules = defaults().maintenance
    assert list(spool.deliver(str(tmp_path / "spool"), store, rules, after(10))) == []
    assert sorted(os.listdir(item)) == ["bundle.sqsh", "draft.json"]


def add(base: Path, uid: int, size: int, limit: int) -> list[str]:
    """Spool a bundle of a user; return the uids of those whose bundles had to go."""
    stage = Path(tempfile.mkdtemp(dir=base))
    (stage / "bundle.sqsh").write_bytes(b"x" * size)
    producer = ITEM.draft.producer._replace(uid=uid)
    dropped = spool.add(
        str(base / "spool"), str(stage), ITEM._replace(draft=ITEM.draft._replace(producer=producer)), limit
    )
    return [one.name.split(".")[1] for one in dropped]


@pytest.mark.threat(27)
def test_nobody_pushes_others_out_of_the_spool(tmp_path: Path) -> None:
    """Who has most gives way, with one large bundle or many small ones."""
    add(tmp_path, 1, 10_000, 1 << 20)
    for _ in range(5):
        add(tmp_path, 2, 10_000, 1 << 20)
    assert add(tmp_path, 2, 10_000, 50_000) == ["2", "2", "2"]
    assert add(tmp_path, 3, 1 << 20, 50_000) == ["3"]
    assert sorted(name.split(".")[1] for name in os.listdir(tmp_path / "spool")) == ["1", "2", "2", "2"]
    assert add(tmp_path, 4, 10_000, 45_000) == ["2"]


@pytest.mark.threat(27)
def test_a_description_counts_in_the_spool(tmp_path: Path) -> None:
    """A job chooses the names in it, and many long ones are larger than their bundle."""
    long = {f"{number}{'x' * 200}": {f"{number}{'x' * 200}": File(3, "ab" * 32, 17)} for number in range(100)}
    stage = tmp_path / "stage"
    stage.mkdir()
    (stage / "bundle.sqsh").write_bytes(b"x")
    item = ITEM._replace(draft=ITEM.draft._replace(entries=long))
    assert len(spool.add(str(tmp_path / "spool"), str(stage), item, 10_000)) == 1


def test_what_the_spool_holds(tmp_path: Path) -> None:
    """Sizes for metrics; there may be no spool."""
    assert spool.held(str(tmp_path / "spool")) == []
    add(tmp_path, 1, 10_000, 1 << 20)
    (size,) = spool.held(str(tmp_path / "spool"))
    assert 10_000 < size < 12_000


REFUSALS = (StoreFailed(what="publish", problem="Permission denied"), OSError(errno.EIO, "Input/output error"))


def a_client(store: Path) -> StoreClient:
    """Return a client of a store of whoever runs the tests."""
    return StoreClient(Identity("me", os.getuid(), os.getgid()), str(store), "n1-test")


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_bundle_that_is_refused_keeps_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: Exception
) -> None:
    """It stays in the spool, and the refusal is told when the others are published."""
    for uid in (1, 2, 3):
        add(tmp_path, uid, 10, 1 << 20)
    published: list[int] = []

    def publish(_store: StoreClient, _where: object, _fd: int, draft: Draft, *_: object, **__: object) -> Published:
        if draft.producer.uid == 2:
            raise refusal
        published.append(draft.producer.uid)
        return Published("b", "ab" * 32, 10, indexed=True)

    monkeypatch.setattr(StoreClient, "publish", publish)
    expected = StoreFailed if isinstance(refusal, StoreFailed) else SpoolFailed
    with a_client(tmp_path) as store, pytest.raises(expected):
        list(spool.deliver(str(tmp_path / "spool"), store, defaults().maintenance, after(20)))
    assert published == [1, 3]
    assert [name.split(".")[1] for name in os.listdir(tmp_path / "spool")] == ["2"]


def test_a_spool_that_cannot_be_opened_is_no_bug(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor is one that is missing."""

    def fails(*_: object) -> NoReturn:
        raise OSError(errno.EMFILE, "Too many open files")

    with a_client(tmp_path) as store:
        assert list(spool.deliver(str(tmp_path / "spool"), store, defaults().maintenance, after(20))) == []
        monkeypatch.setattr(spool, "opened_dir", fails)
        with pytest.raises(SpoolFailed, match="open files"):
            list(spool.deliver(str(tmp_path / "spool"), store, defaults().maintenance, after(20)))
