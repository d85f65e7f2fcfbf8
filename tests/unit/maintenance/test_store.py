"""Maintenance of the store: one host at a time, and what fails in one namespace keeps nothing else from being done."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tests.lib import packed
from tests.lib.node import SCOPE, Node
from tests.lib.superblocks import image
from tests.lib.worker_calls import answer_here
from warmstart.caches.store import bundles, ending, gc, layout
from warmstart.caches.store.bundles import Published
from warmstart.caches.store.gc import Bundle, Merger
from warmstart.caches.store.layout import Namespace
from warmstart.host.deadline import Deadline
from warmstart.host.files import DiskFailed
from warmstart.images.store import eviction
from warmstart.maintenance import repack, store
from warmstart.maintenance.store import StoreMaintenance, StoreReport, locked
from warmstart.seed.overlay import OverlayUnavailable
from warmstart.session import MaintenanceBusy, Session, open_session
from warmstart.store.layout import StoreFailed


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
    with locked(session) as work:
        report = work.all()
    assert report._replace(verified=0) == StoreReport()
    assert sorted(node.offered()) == ["a", "b"]


def test_all_that_nobody_used_for_long_goes(node: Node, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    later = time.time() + session.policy.maintenance.keep + 86_400
    monkeypatch.setattr(store, "time", SimpleNamespace(time=lambda: later))
    StoreMaintenance(session).collect_garbage()
    assert (node.offered(), node.offered("site")) == ([], [])


def test_another_host_is_at_it(session: Session) -> None:
    with locked(session), pytest.raises(MaintenanceBusy), locked(session):
        pass
    with locked(session):
        pass


def test_what_dead_publishers_left_is_swept(node: Node, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    left = [f".tmp-{number}" for number in range(30)]
    answer_here(monkeypatch, bundles.sweep, lambda *_: left)
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
    survey = gc.survey

    def failing(where: Namespace) -> list[Bundle]:
        if where.scope == "site":
            raise StoreFailed(what="w", problem="Input/output error")
        return survey(where)

    answer_here(monkeypatch, survey, failing)
    monkeypatch.setattr(gc, "is_due", lambda *_: True)
    with locked(session) as work:
        report = work.all()
    assert (report.verified, report.failed) == (2, 2)
    assert {error.code for error in session.failures} == {"store-failed"}


def test_what_can_not_be_merged_stays(node: Node, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the host cannot mount, the first namespace says so, and no other is tried."""
    tried: list[Namespace] = []

    def compact(_session: Session, where: Namespace, *_: object) -> Published:
        tried.append(where)
        raise OverlayUnavailable(profile="numba", problem="no overlay")

    monkeypatch.setattr(repack, "compact", compact)
    monkeypatch.setattr(store, "FEWEST", 2)
    with locked(session) as work:
        report = work.all()
    assert (report.compacted, report.failed, len(tried)) == (0, 1, 1)
    assert sorted(node.offered()) == ["a", "b"]


def test_one_users_bundles_keep_no_other_users_from_being_merged(
    node: Node, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, user in zip("cdef", "bbcc", strict=True):
        node.publish({name: {f"{name}.nbi": b"x"}}, scope="site", user=user, uid=ord(user))

    def fail_for_one(_session: Session, _where: Namespace, merger: Merger, _deadline: Deadline) -> Published:
        if merger.rows[0].user == "b":
            raise DiskFailed(what="/x", problem="no")
        return Published(merger.rows[0].user)

    monkeypatch.setattr(repack, "compact", fail_for_one)
    work = StoreMaintenance(session)
    assert work.compact(node.namespace("site"), fewest=2)
    assert [event["bundle"] for event in node.events("bundle.compacted")] == ["a", "c"]
    assert [error.code for error in session.failures] == ["disk-failed"]


def test_the_checks_go_on(node: Node, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    answers: Iterator[str | Exception] = iter(["", "its hash differs", StoreFailed(what="w", problem="p"), ""])

    def damage(*_: object) -> str:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    answer_here(monkeypatch, gc.damage, damage)
    work = StoreMaintenance(session)
    found = work.check(work.bundles())
    assert list(found.values()) == ["its hash differs"]
    assert (work.report.verified, work.report.removed, work.report.failed) == (3, 1, 1)
    assert [event["reason"] for event in node.events("bundle.damaged")] == ["its hash differs"]
    assert len(list(work.bundles())) == 3


def test_a_large_store_is_never_held_whole(node: Node, session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    listed, surveyed = layout.namespaces, gc.survey

    def namespaces(store: str, scope: str) -> list[Namespace]:
        asked.append(f"list {scope}")
        if scope == "site" and asked.count("list site") > 1:
            raise StoreFailed(what="w", problem="p")
        return listed(store, scope)

    def survey(where: Namespace) -> list[Bundle]:
        asked.append(f"read {where.scope}")
        return surveyed(where)

    answer_here(monkeypatch, listed, namespaces)
    answer_here(monkeypatch, surveyed, survey)
    work = StoreMaintenance(session)
    assert next(work.bundles()).scope == "site"
    assert asked == ["list site", "read site"]
    assert [bundle.scope for bundle in work.bundles()] == [SCOPE] * 2
    assert work.report.failed == 1
    assert len(session.failures) == 1


def test_a_run_of_which_not_all_nodes_ended_is_published(
    node: Node, session: Session, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer_here(monkeypatch, ending.due, lambda *_: ["1.c.7.0", "1.c.8.0"])

    def unite(_store: str, _writer: str, name: str, _now: float) -> list[ending.United]:
        if name == "1.c.7.0":
            raise StoreFailed(what="w", problem="p")
        return [ending.United(node.namespace(), 3, [])]

    answer_here(monkeypatch, ending.unite, unite)
    with locked(session) as work:
        report = work.all()
    assert (report.united, report.failed) == (1, 1)
    assert [(event["run"], event["generation"]) for event in node.events("harvest.merged")] == [("1.c.8.0", 3)]


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
