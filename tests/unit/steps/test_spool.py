"""The step `spool`: what the store did not take earlier is published, the oldest first, while there is time."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lib.bundles import draft
from tests.lib.runs import a_context, events
from warmstart.harvest import spool as spooling
from warmstart.harvest.spool import Spooled, SpoolFailed
from warmstart.host.files import remove_tree, try_flock
from warmstart.steps import spool
from warmstart.steps.contract import Context, Outcome
from warmstart.store import bundles

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


def left(context: Context) -> list[str]:
    return [name.split(".", 2)[2] for name in sorted(os.listdir(context.paths.spool))]


def test_all_that_is_spooled_is_published(context: Context) -> None:
    assert spool.run(context, SOON) == Outcome("changed", detail={"bundles": 2})
    assert (offered(context), left(context)) == (["a", "b"], [])
    assert [event["namespace"] for event in events(context, "bundle.published")] == ["ns", "ns"]
    assert spool.run(context, SOON) == Outcome("unchanged", detail={"bundles": 0})
    os.rmdir(context.paths.spool)
    assert spool.run(context, SOON) == Outcome("unchanged", detail={"bundles": 0})
    assert not os.path.exists(context.paths.spool)


def test_an_event_names_who_made_the_bundle(context: Context) -> None:
    other = context.audit.bind(hook="epilog", node="n1", job_id=8, uid=2002, user="bob", cluster="c2", step="spool")
    (first, second) = sorted(os.listdir(context.paths.spool))
    Path(context.paths.spool, second, spooling.DRAFT).write_bytes(b"{")
    spool.run(context._replace(audit=other), SOON)
    by = {"hook": "epilog", "job_id": 8, "uid": 2002, "user": "bob"}
    (told,) = events(context, "bundle.published")
    assert [told[key] for key in ("job_id", "uid", "user", "cluster", "done_by")] == [7, 1000, "a", "c", by]
    expected = (first, "0.0a1b2c3d", "user-1", 1, 0, "epilog")
    keys = ("spooled", "run", "scope", "entries", "superseding", "hook")
    assert tuple(told[key] for key in keys) == expected
    (lost,) = events(context, "bundle.dropped")
    assert (lost["uid"], lost["job_id"], lost["done_by"]) == (1000, 1, by)  # its name tells, its draft is damaged
    assert lost.keys().isdisjoint({"user", "cluster"})


def test_what_is_published_is_told_also_if_it_stays(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next delivery finds the entries published and would tell nothing."""

    def fails(*_: object) -> None:
        monkeypatch.setattr(spooling, "remove_tree", remove_tree)
        raise OSError(errno.ETIME, "not all removed before the deadline")

    monkeypatch.setattr(spooling, "remove_tree", fails)
    with pytest.raises(SpoolFailed, match="not all removed"):
        spool.run(context, SOON)
    assert len(events(context, "bundle.published")) == 2
    assert spool.run(context, SOON).detail == {"bundles": 1}
    assert (offered(context), left(context)) == (["a", "b"], [])
    assert len(events(context, "bundle.published")) == 2


def test_without_time_it_waits(context: Context) -> None:
    assert spool.run(context, spool.Options(0)).detail == {"bundles": 0}
    held = os.open(context.paths.spool, os.O_RDONLY)
    try:
        assert try_flock(held)
        assert spool.run(context, SOON).detail == {"bundles": 0}
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
