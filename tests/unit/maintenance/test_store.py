"""Maintenance of the store: one host at a time, and what fails in one namespace keeps nothing else from being done."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lib import packed
from tests.lib.node import SCOPE, Node
from tests.lib.superblocks import image
from tests.lib.worker_calls import answer_here
from warmstart.images.store import eviction
from warmstart.maintenance.bundles import audited_survey
from warmstart.maintenance.store import StoreMaintenance, StoreReport
from warmstart.repack import rewrite
from warmstart.session import MaintenanceBusy, Session, open_session
from warmstart.store import index, maintenance
from warmstart.store.bundles import BundleDamaged
from warmstart.store.layout import Namespace, StoreFailed
from warmstart.store.maintenance import Bundle, Merger


@pytest.fixture
def session(node: Node) -> Iterator[Session]:
    """Give a session on a store with two bundles in each of two scopes."""
    for scope in (SCOPE, "site"):
        for entry in "ab":
            where = Namespace(str(node.store), scope, "numba", "ns")
            packed.publish(node.base, where, {entry: {f"{entry}.nbi": scope.encode()}})
    with open_session(node.installation, "maintain") as opened:
        yield opened


def test_a_store_without_work(node: Node, session: Session) -> None:
    """Nothing is removed; what is due of the scrub is verified."""
    report = StoreMaintenance(session).all()
    assert report._replace(verified=0) == StoreReport()
    assert sorted(node.offered()) == ["a", "b"]


def test_another_host_is_at_it(node: Node, session: Session) -> None:
    """Nobody waits."""
    with node.client() as other:
        assert other.lock(session.store_deadline())
        with pytest.raises(MaintenanceBusy):
            StoreMaintenance(session)
    StoreMaintenance(session)


def test_what_dead_publishers_left_is_swept(node: Node, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """With an event that names some of it, but no event for nothing."""
    left = [f".tmp-{number}" for number in range(30)]
    answer_here(monkeypatch, maintenance.sweep, lambda *_: left)
    work = StoreMaintenance(session)
    work.sweep(next(work.namespaces()))
    assert work.report.swept == 30
    (event,) = node.events("store.swept")
    assert len(event["names"]) == 20
    left = []
    work.sweep(next(work.namespaces()))
    assert len(node.events("store.swept")) == 1


def test_one_namespace_that_fails_is_told(node: Node, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other is done."""
    seen = []

    def sweep(where: Namespace, *_: object) -> list[str]:
        seen.append(where.scope)
        if where.scope == "site":
            raise StoreFailed(what="sweep", problem="x")
        return []

    answer_here(monkeypatch, maintenance.sweep, sweep)
    assert StoreMaintenance(session).all().failed == 1
    assert sorted(seen) == sorted(["site", SCOPE])
    assert [event["step"] for event in node.events("step.failed")] == ["store"]


@pytest.mark.threat(24)
def test_a_namespace_that_can_not_be_surveyed_stops_nothing(
    node: Node, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever is in it: garbage is collected in the others, and their bundles are verified."""
    read = index.read

    def failing(directory: str, owner: str) -> index.Index:
        if "/site/" in directory:
            raise OSError(errno.EIO, "Input/output error")
        return read(directory, owner)

    monkeypatch.setattr(index, "read", failing)
    monkeypatch.setattr(rewrite, "is_due", lambda *_: True)
    report = StoreMaintenance(session).all()
    assert (report.verified, report.failed) == (2, 2)
    assert {event["error"]["code"] for event in node.events("step.failed")} == {"store-failed"}


def damaged(*_: object) -> None:
    """Find a bundle damaged while it is merged."""
    raise BundleDamaged(bundle="20200101T000000.000000Z-0123456789abcdef", problem="cut")


def test_what_can_not_be_merged_stays(node: Node, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged bundle is quarantined."""
    merger = Merger("a", ["x"], {}, {})
    answer_here(monkeypatch, maintenance.plan_compaction, lambda *_: [merger])
    quarantined: list[str] = []

    def quarantine(_where: Namespace, _writer: str, bundle: str) -> bool:
        quarantined.append(bundle)
        return True

    answer_here(monkeypatch, maintenance.quarantine, quarantine)
    work = StoreMaintenance(session)
    monkeypatch.setattr(rewrite, "compact", damaged)
    work.compact(next(work.namespaces()))
    assert quarantined == ["20200101T000000.000000Z-0123456789abcdef"]
    assert (work.report.compacted, work.report.quarantined) == (0, 1)
    assert [event["reason"] for event in node.events("bundle.quarantined")] == ["cut"]


def test_what_a_prolog_could_not_fetch_is_not_made(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs would wait for it."""
    asked = []

    def plan(_where: Namespace, _writer: str, fewest: int, most_bytes: int) -> list[Merger]:
        asked.append((fewest, most_bytes))
        return []

    answer_here(monkeypatch, maintenance.plan_compaction, plan)
    StoreMaintenance(session).compact(Namespace("/s", "site", "numba", "ns"))
    assert asked == [(rewrite.FEWEST, rewrite.MOST_BYTES)]


def test_the_scrub_goes_on(node: Node, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Past what can't be read now, and past what is damaged."""
    answers: Iterator[str | Exception] = iter(["", "its hash differs", StoreFailed(what="w", problem="p"), ""])

    def verify(*_: object) -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(rewrite, "verify", verify)
    work = StoreMaintenance(session)
    found = work.scrub(work.bundles())
    assert list(found.values()) == ["its hash differs"]
    assert (work.report.verified, work.report.quarantined, work.report.failed) == (3, 1, 1)
    assert len(list(work.bundles())) == 3


def test_a_large_store_is_never_held_whole(node: Node, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each scope is listed and each namespace read when its turn comes; a scope that fails is left out."""
    asked: list[str] = []
    listed, surveyed = maintenance.namespaces, maintenance.survey

    def namespaces(store: str, scope: str) -> list[Namespace]:
        asked.append(f"list {scope}")
        if scope == "site" and asked.count("list site") > 1:
            raise StoreFailed(what="w", problem="p")
        return listed(store, scope)

    def survey(where: Namespace, writer: str) -> list[Bundle]:
        asked.append(f"read {where.scope}")
        return surveyed(where, writer)

    answer_here(monkeypatch, listed, namespaces)
    answer_here(monkeypatch, surveyed, survey)
    work = StoreMaintenance(session)
    assert next(work.bundles()).scope == "site"
    assert asked == ["list site", "read site"]
    assert [bundle.scope for bundle in work.bundles()] == [SCOPE] * 2
    assert work.report.failed == 1
    assert len(node.events("step.failed")) == 1


def test_quotas_are_exact_here(node: Node, session: Session) -> None:
    """The least recently used bundles of a scope go."""
    sizes = [bundle.stored for bundle in audited_survey(session) if bundle.scope == SCOPE]
    policy = session.policy
    small = session._replace(policy=policy._replace(maintenance=policy.maintenance._replace(per_user=sum(sizes) - 1)))
    work = StoreMaintenance(small)
    work.collect_garbage()
    assert work.report.removed == 1
    assert len(node.offered()) == 1
    assert len(node.offered("site")) == 2


def test_what_a_dead_producer_did_not_write_down_is_written(node: Node, session: Session) -> None:
    """The image is whole, and has its hash from then on; one that cannot be read is an error, and stops no other."""
    shared, private = (node.store / path for path in ("images", "private/team/images"))
    for images in (shared, private):
        images.mkdir(parents=True)
    (shared / "a.sqsh").mkdir()
    for path in (shared / "b.sqsh", private / "c.sqsh"):
        path.write_bytes(image())
    for path in (shared / "a.sqsh", shared / "b.sqsh", private / "c.sqsh"):
        os.utime(path, (0, 0))
    work = StoreMaintenance(session)
    work.maintain_images()
    for path in (shared / "b.json", private / "c.json"):
        assert json.loads(path.read_text())["sha256"] == hashlib.sha256(image()).hexdigest()
    assert work.report.failed == 1


@pytest.mark.parametrize("fails", [False, True])
def test_images_are_kept_below_the_watermarks(
    node: Node, session: Session, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """In the shared store and in each private one; one that fails keeps no other."""
    for path in ("images", "private/team/images"):
        (node.store / path).mkdir(parents=True)
    asked: list[str] = []

    def gone(path: str, *_: object) -> list[str]:
        asked.append(Path(path).name)
        if fails:
            raise StoreFailed(what="w", problem="p")
        return ["image"]

    answer_here(monkeypatch, eviction.make_room, gone)
    work = StoreMaintenance(session)
    work.maintain_images()
    assert asked == ["store", "team"]
    done = 0 if fails else 2
    assert (work.report.evicted, work.report.failed) == (done, 2 - done)
    assert len(node.events("image.evicted")) == done
