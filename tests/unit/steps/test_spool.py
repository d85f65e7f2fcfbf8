"""The step `spool`: what the store did not take earlier is published, the oldest first, while there is time."""

from __future__ import annotations

import errno
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lib.bundles import draft
from tests.lib.policy_site import defaults
from tests.lib.runs import a_context, events
from warmstart.harvest import spool as spooling
from warmstart.harvest.spool import Spooled
from warmstart.host.deadline import after
from warmstart.host.files import DiskFailed, remove_tree, try_flock
from warmstart.host.identity import Identity
from warmstart.steps import spool
from warmstart.steps.contract import Context, Outcome
from warmstart.store import bundles
from warmstart.store.bundles import Published
from warmstart.store.client import StoreClient
from warmstart.store.layout import StoreFailed
from warmstart.store.manifest import Base, Draft, File

SOON = spool.Options(30)


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    """Give a context whose spool has two bundles, and a store."""
    made = a_context(tmp_path)
    (tmp_path / "store").mkdir()
    for number, entry in enumerate("ab"):
        stage = tmp_path / f"stage-{entry}"
        stage.mkdir()
        (stage / spooling.BUNDLE).write_bytes(entry.encode())
        item = Spooled("user-1", "numba", "ns", draft(entry), f"{number}.0a1b2c3d.numba")
        assert spooling.add(made.paths.spool, str(stage), item, 1 << 20) == []
    yield made
    made.store.close()


def offered(context: Context) -> list[str]:
    found = bundles.offers(context.store.path, ["user-1"], "numba", "ns", "n1-test")
    return [entry for offer in found.offers for entry in offer.entries]


def published(context: Context) -> list[dict[str, Any]]:
    """Return what the log says of the caches of those whose bundles were published."""
    return [line["caches"]["numba"] for line in events(context, "harvest.finished")]


def left(context: Context) -> list[str]:
    return [name.split(".", 2)[2] for name in sorted(os.listdir(context.paths.spool))]


def test_all_that_is_spooled_is_published(context: Context) -> None:
    assert spool.run(context, SOON) == Outcome(detail={"bundles": 2})
    assert (offered(context), left(context)) == (["a", "b"], [])
    assert [cache["namespace"] for cache in published(context)] == ["ns", "ns"]
    assert spool.run(context, SOON) == Outcome()
    os.rmdir(context.paths.spool)
    assert spool.run(context, SOON) == Outcome()
    assert not os.path.exists(context.paths.spool)


def test_a_line_names_who_made_the_bundle(context: Context) -> None:
    other = context.audit.bind(hook="epilog", node="n1", job_id=8, uid=2002, user="bob", cluster="c2", step="spool")
    (_, second) = sorted(os.listdir(context.paths.spool))
    Path(context.paths.spool, second, spooling.DRAFT).write_bytes(b"{")
    spool.run(context._replace(audit=other), SOON)
    by = {"hook": "epilog", "job_id": 8, "uid": 2002, "user": "bob"}
    (told,) = events(context, "harvest.finished")
    assert [told[key] for key in ("job_id", "uid", "user", "cluster", "done_by")] == [7, 1000, "a", "c", by]
    assert (told["run"], told["hook"]) == ("0.0a1b2c3d", "epilog")
    cache = told["caches"]["numba"]
    assert (cache["scope"], cache["entries"], cache["superseding"]) == ("user-1", 1, 0)
    (lost,) = events(context, "bundle.dropped")
    assert (lost["uid"], lost["job_id"], lost["done_by"]) == (1000, 1, by)  # its name tells, its draft is damaged
    assert lost.keys().isdisjoint({"user", "cluster"})


def test_what_is_published_is_told_also_if_it_stays(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next delivery finds the entries published and would tell nothing."""

    def fails(*_: object) -> None:
        monkeypatch.setattr(spooling, "remove_tree", remove_tree)
        raise OSError(errno.ETIME, "not all removed before the deadline")

    monkeypatch.setattr(spooling, "remove_tree", fails)
    with pytest.raises(DiskFailed, match="not all removed"):
        spool.run(context, SOON)
    assert len(published(context)) == 2
    assert spool.run(context, SOON).detail == {"bundles": 1}
    assert (offered(context), left(context)) == (["a", "b"], [])
    assert len(published(context)) == 2


def test_without_time_it_waits(context: Context) -> None:
    assert spool.run(context, spool.Options(0)).detail == {}
    held = os.open(context.paths.spool, os.O_RDONLY)
    try:
        assert try_flock(held)
        assert spool.run(context, SOON).detail == {}
    finally:
        os.close(held)
    assert left(context) == ["0.0a1b2c3d.numba", "1.0a1b2c3d.numba"]


def test_what_will_never_be_taken_is_dropped(context: Context) -> None:
    """A damaged bundle, and one for which its scope has no room any more."""
    (first, _) = sorted(os.listdir(context.paths.spool))
    Path(context.paths.spool, first, spooling.DRAFT).write_bytes(b"{")
    policy = context.policy
    full = context._replace(policy=policy._replace(maintenance=policy.maintenance._replace(per_user=1)))
    assert spool.run(full, SOON).detail == {"bundles": 2}
    assert (offered(context), left(context)) == ([], [])
    reasons = [event["reason"] for event in events(context, "bundle.dropped")]
    assert reasons[0] == spooling.DAMAGED
    assert "more do not fit" in reasons[1]


# What lies in the spool, and whose gives way.

ITEM = Spooled("user-1", "numba", "ns", draft("a"), "7.0a1b2c3d.numba", "ab" * 32)


def test_a_spooled_bundle_comes_back_with_what_the_job_was_seeded_with() -> None:
    item = ITEM._replace(draft=ITEM.draft._replace(based_on={"a": Base("site", "ab" * 32)}, fresh=True))
    assert spooling._decode(spooling._encode(item)) == item


@pytest.mark.parametrize("change", [{"draft": None}, {"draft": {}}, {"scope": 1}])
def test_what_is_damaged_is_said_to_be(change: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"damaged|expected|missing"):
        spooling._decode(json.dumps({**json.loads(spooling._encode(ITEM)), **change}).encode())


def test_a_description_of_a_newer_release_is_no_damage(tmp_path: Path) -> None:
    written = json.loads(spooling._encode(ITEM))
    assert spooling._decode(json.dumps({**written, "more": [1]}).encode()) == ITEM
    item = tmp_path / "spool" / "00000000000000000001.1.7.0a1b2c3d.numba"
    item.mkdir(parents=True)
    (item / "bundle.sqsh").touch()
    (item / "draft.json").write_text(json.dumps({**written, "format": 2}))
    assert deliver(tmp_path) == []
    assert sorted(os.listdir(item)) == ["bundle.sqsh", "draft.json"]


def deliver(base: Path) -> list[str]:
    """Deliver the spool to a store of whoever runs the tests; return why each was dropped."""
    with StoreClient(Identity("me", os.getuid(), os.getgid()), str(base), "n1-test") as store:
        return [one.reason for one in spooling.deliver(str(base / "spool"), store, defaults().maintenance, after(20))]


def add(base: Path, uid: int, size: int, limit: int) -> list[str]:
    """Spool a bundle of a user; return the uids of those whose bundles had to go."""
    stage = Path(tempfile.mkdtemp(dir=base))
    (stage / "bundle.sqsh").write_bytes(b"x" * size)
    producer = ITEM.draft.producer._replace(uid=uid)
    dropped = spooling.add(
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
    assert len(spooling.add(str(tmp_path / "spool"), str(stage), item, 10_000)) == 1


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
    expected = StoreFailed if isinstance(refusal, StoreFailed) else DiskFailed
    with pytest.raises(expected):
        deliver(tmp_path)
    assert published == [1, 3]
    assert [name.split(".")[1] for name in os.listdir(tmp_path / "spool")] == ["2"]
