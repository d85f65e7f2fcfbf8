"""Maintenance of the store: one host at a time, and what fails in one namespace keeps nothing else from being done."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest
from warmstart.store.maintenance import Bundle, Merger

from tests.lib import packed
from tests.lib.node import SCOPE, Node
from tests.lib.superblocks import image
from tests.lib.worker_calls import answer_here
from warmstart.images.store import eviction
from warmstart.maintenance import store
from warmstart.maintenance.store import StoreMaintenance, StoreReport
from warmstart.repack import rewrite
from warmstart.session import MaintenanceBusy, Session, open_session
from warmstart.store import index, maintenance
from warmstart.store.bundles import BundleDamaged
from warmstart.store.layout import Namespace, StoreFailed


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
    report = StoreMaintenance(session).all()
    assert report._replace(verified=0) == StoreReport()
    assert sorted(node.offered()) == ["a", "b"]


def test_all_that_nobody_used_for_long_goes(node: Node, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    later = time.time() + session.policy.maintenance.keep + 86_400
    monkeypatch.setattr(store, "time", SimpleNamespace(time=lambda: later))
    StoreMaintenance(session).collect_garbage()
    assert (node.offered(), node.offered("site")) == ([], [])


def test_another_host_is_at_it(node: Node, session: Session) -> None:
    with node.client() as other:
        assert other.lock(session.store_deadline())
        with pytest.raises(MaintenanceBusy):
            StoreMaintenance(session)
    StoreMaintenance(session)


def test_what_dead_publishers_left_is_swept(node: Node, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.threat(24)
def test_a_namespace_that_can_not_be_surveyed_stops_nothing(
    node: Node, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = index.read

    def failing(directory: str, owner: str) -> index.Index:
        if "/site/" in directory:
            raise OSError(errno.EIO, "Input/output error")
        return read(directory, owner)

    monkeypatch.setattr(index, "read", failing)
    monkeypatch.setattr(rewrite, "is_due", lambda *_: True)
    report = StoreMaintenance(session).all()
    assert (report.verified, report.failed) == (2, 2)
    assert {error.code for error in session.failures} == {"store-failed"}


def damaged(*_: object) -> None:
    raise BundleDamaged(bundle="20200101T000000.000000Z-0123456789abcdef", problem="cut")


def test_what_can_not_be_merged_stays(node: Node, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_scrub_goes_on(node: Node, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert len(session.failures) == 1


def test_images_of_all_stores_are_kept_and_one_that_fails_keeps_no_other(
    node: Node, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a dead producer did not write down is written, and the watermarks hold, also in private stores."""
    shared, private = (node.store / path for path in ("images", "private/team/images"))
    for images in (shared, private):
        images.mkdir(parents=True)
    (shared / "a.sqsh").mkdir()
    for path in (shared / "b.sqsh", private / "c.sqsh"):
        path.write_bytes(image())
    for path in (shared / "a.sqsh", shared / "b.sqsh", private / "c.sqsh"):
        os.utime(path, (0, 0))

    def gone(path: str, *_: object) -> list[str]:
        if path == str(node.store):
            raise StoreFailed(what="w", problem="p")
        return ["image"]

    answer_here(monkeypatch, eviction.make_room, gone)
    work = StoreMaintenance(session)
    work.maintain_images()
    for path in (shared / "b.json", private / "c.json"):
        assert json.loads(path.read_text())["sha256"] == hashlib.sha256(image()).hexdigest()
    assert (work.report.evicted, work.report.failed) == (1, 2)
    assert len(node.events("image.evicted")) == 1
