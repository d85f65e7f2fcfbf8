"""The description of a spooled bundle."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from pathlib import Path

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


def test_a_spooled_bundle_comes_back_with_what_the_job_was_seeded_with() -> None:
    item = ITEM._replace(draft=ITEM.draft._replace(based_on={"a": Base("site", "ab" * 32)}, fresh=True))
    assert spool._decode(spool._encode(item)) == item


@pytest.mark.parametrize("change", [{"draft": None}, {"draft": {}}, {"scope": 1}])
def test_what_is_damaged_is_said_to_be(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"damaged|expected|missing"):
        spool._decode(json.dumps({**json.loads(spool._encode(ITEM)), **change}).encode())


def test_a_description_of_a_newer_release_is_no_damage(tmp_path: Path) -> None:
    written = json.loads(spool._encode(ITEM))
    assert spool._decode(json.dumps({**written, "more": [1]}).encode()) == ITEM
    item = tmp_path / "spool" / "00000000000000000001.1.7.0a1b2c3d.numba"
    item.mkdir(parents=True)
    (item / "bundle.sqsh").touch()
    (item / "draft.json").write_text(json.dumps({**written, "format": 2}))
    assert deliver(tmp_path) == []
    assert sorted(os.listdir(item)) == ["bundle.sqsh", "draft.json"]


def deliver(base: Path) -> list[str]:
    """Deliver the spool to a store of whoever runs the tests; return why each was dropped."""
    with StoreClient(Identity("me", os.getuid(), os.getgid()), str(base), "n1-test") as store:
        return [one.reason for one in spool.deliver(str(base / "spool"), store, defaults().maintenance, after(20))]


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
    add(tmp_path, 1, 10_000, 1 << 20)
    for _ in range(5):
        add(tmp_path, 2, 10_000, 1 << 20)
    assert add(tmp_path, 2, 10_000, 50_000) == ["2", "2", "2"]
    assert add(tmp_path, 3, 1 << 20, 50_000) == ["3"]
    assert sorted(name.split(".")[1] for name in os.listdir(tmp_path / "spool")) == ["1", "2", "2", "2"]
    assert add(tmp_path, 4, 10_000, 45_000) == ["2"]


@pytest.mark.threat(27)
def test_a_description_counts_in_the_spool(tmp_path: Path) -> None:
    long = {f"{number}{'x' * 200}": {f"{number}{'x' * 200}": File(3, "ab" * 32, 17)} for number in range(100)}
    stage = tmp_path / "stage"
    stage.mkdir()
    (stage / "bundle.sqsh").write_bytes(b"x")
    item = ITEM._replace(draft=ITEM.draft._replace(entries=long))
    assert len(spool.add(str(tmp_path / "spool"), str(stage), item, 10_000)) == 1


REFUSALS = (StoreFailed(what="publish", problem="Permission denied"), OSError(errno.EIO, "Input/output error"))


@pytest.mark.parametrize("refusal", REFUSALS)
def test_a_bundle_that_is_refused_keeps_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refusal: Exception
) -> None:
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
    with pytest.raises(expected):
        deliver(tmp_path)
    assert published == [1, 3]
    assert [name.split(".")[1] for name in os.listdir(tmp_path / "spool")] == ["2"]
