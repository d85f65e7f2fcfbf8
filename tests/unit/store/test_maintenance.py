"""Decisions of the store's maintenance: which bundles to remove, and which to verify today."""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.lib.bundles import OWNER, draft, memory_file, namespace, publish
from tests.lib.policy_site import defaults
from warmstart.repack import rewrite
from warmstart.store import bundles, maintenance
from warmstart.store.maintenance import Bundle, Use

WHOLES = "whole-things"

POLICY = defaults().maintenance._replace(keep=100, per_user=10)


def bundle(name: str, used: float, stored: int = 1, scope: str = "user-1-a", weight: int = 1) -> Bundle:
    sha256 = hashlib.sha256(name.encode()).hexdigest()
    return Bundle(scope, "numba", "ns", name, sha256, 1, 1, "a", used, stored, weight)


def test_unused_bundles_go_first_then_the_least_used_of_a_scope() -> None:
    found = [
        bundle("unused", 0), bundle("older", 150, 6), bundle("newer", 160, 6), bundle("other", 120, 9, "user-2-b"),
        bundle("team", 120, 89, "account-t"), bundle("all", 130, 401, "site"),
    ]  # fmt: skip
    going = {one.bundle.bundle: one.reason for one in maintenance.expired(found, POLICY, 200)}
    assert going == {
        "unused": maintenance.UNUSED,
        "older": maintenance.OVER,
        "all": maintenance.OVER,
    }


def test_a_whole_that_a_job_may_be_reading_stays() -> None:
    now = 1_000_000.0
    read = bundle("read", now - 7200, 6)._replace(profile=WHOLES)
    cache = bundle("cache", now - 100, 6)
    policy = POLICY._replace(keep=10**9)
    assert [one.bundle for one in maintenance.expired([read, cache], policy, now)] == [cache]
    assert [one.bundle for one in maintenance.expired([read, cache], policy, now + 7200)] == [read]


@pytest.mark.threat(24)
def test_names_close_to_their_bound_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(maintenance, "MOST_PER_USER", 100)
    heavy = [bundle("older", 150, weight=50), bundle("newer", 160, weight=45)]
    site = [one._replace(scope="site", user=one.bundle) for one in heavy]
    going = {one.bundle: one.reason for one in maintenance.expired([*heavy, *site], POLICY, 200)}
    assert going == {heavy[0]: maintenance.OVER_NAMES}


def test_a_users_least_used_names_of_caches_go() -> None:
    policy = POLICY._replace(keep=10**9, per_user=10**9)

    def named(number: int, name: str, scope: str = "user-1-a") -> Bundle:
        return bundle(f"{scope}{name}{number}", number, scope=scope)._replace(cache=name)

    names = [named(number, f"c{number}") for number in range(maintenance.MOST_CACHES + 2)]
    again = named(1000, "c0")
    others = [named(0, "x", "user-2-b"), named(0, "")]
    going = maintenance.expired([*names, again, *others], policy, 2000)
    assert [(one.bundle.cache, one.reason) for one in going] == [
        ("c1", maintenance.OVER_CACHES),
        ("c2", maintenance.OVER_CACHES),
    ]


def test_every_bundle_is_verified_once_in_thirty_days() -> None:
    found = [bundle(str(number), 0) for number in range(200)]
    days = Counter(one.bundle for day in range(1000, 1030) for one in found if rewrite.is_due(one, day))
    assert set(days.values()) == {1}
    assert len(days) == 200


def test_the_survey_tells_the_last_use_and_uses_are_recorded_once_a_day(tmp_path: Path) -> None:
    made = publish(tmp_path, "a").bundle or ""
    path = Path(namespace(tmp_path).path, f"{made}.sqsh")
    os.utime(path, (1_000_000, 1_000_000))
    use = Use("user-1", "numba", "ns", made, 1_050_000.0)
    assert maintenance.record_uses(str(tmp_path), [use, use._replace(bundle="../../x", at=9e9)]) == 0
    assert maintenance.record_uses(str(tmp_path), [use._replace(at=1_200_000.0), use._replace(at=1_200_001.0)]) == 1
    (row,) = maintenance.survey(namespace(tmp_path), OWNER)
    assert (row.bundle, row.used, row.user) == (made, 1_200_000.0, "a")
    assert row.stored > row.size + path.with_suffix(".json").stat().st_size


def test_a_bundle_of_which_a_source_is_gone_is_not_published(tmp_path: Path) -> None:
    """If a source was quarantined or removed meanwhile, the merged bundle must not bring it back."""
    gone = publish(tmp_path, "a", content=b"1").bundle or ""
    left = publish(tmp_path, "b", content=b"2").bundle or ""
    maintenance.quarantine(namespace(tmp_path), OWNER, gone)
    made = draft("a", "b")._replace(replaces=[gone, left])
    with memory_file(b"merged") as fd:
        assert bundles.publish_compacted(namespace(tmp_path), fd, made, OWNER).bundle is None


def test_the_stores_own_directories_are_swept(tmp_path: Path) -> None:
    """A temp file and a sum are removed after a day, an answer after a week; nothing else is removed."""
    publish(tmp_path, "a")
    bundles.check_quota(str(tmp_path), "user-1", 1, 1 << 20)
    (tmp_path / "artifacts/locks/maintenance").touch()
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "c.7.0.json").touch()
    (tmp_path / "runs" / "c.8.0").mkdir()  # of a job whose head node died
    (tmp_path / "runs" / "c.8.0" / "caches.proposal").touch()
    left = [".maintained.7.tmp", ".tmp-n1-dead"]
    for name in (*left, "id"):
        (tmp_path / "artifacts" / name).touch()
    now = time.time()
    assert maintenance.sweep_top(str(tmp_path), now + 80_000) == []
    assert maintenance.sweep_top(str(tmp_path), now + 90_000) == [
        f"artifacts/{name}" for name in (*left, "locks/size.user-1")
    ]
    assert maintenance.sweep_top(str(tmp_path), now + 700_000) == ["runs/c.7.0.json", "runs/c.8.0"]
    assert (tmp_path / "artifacts" / "id").exists()


def emptied(store: Path, scope: str = "user-1") -> Path:
    """Publish a bundle and remove it again. Return the namespace's directory."""
    made = publish(store, "a", scope=scope).bundle or ""
    where = namespace(store, scope)
    assert maintenance.remove(where, OWNER, [made]) == [made]
    return Path(where.path)


LATER = time.time() + 2 * maintenance.DAY


@pytest.mark.threat(32)
def test_an_empty_namespace_goes_after_a_day(tmp_path: Path) -> None:
    assert maintenance.scopes(str(tmp_path)) == []
    path = emptied(tmp_path)
    publish(tmp_path, "a", scope="user-2")
    (path / "quarantine").mkdir()
    assert not maintenance.remove_empty(namespace(tmp_path), time.time())
    assert path.is_dir()
    assert maintenance.remove_empty(namespace(tmp_path), LATER)
    assert sorted(os.listdir(tmp_path / "artifacts")) == ["user-2"]
    assert not maintenance.remove_empty(namespace(tmp_path), LATER)
    assert publish(tmp_path, "b").bundle
    assert maintenance.scopes(str(tmp_path)) == ["user-1", "user-2"]
    assert maintenance.namespaces(str(tmp_path), "user-1") == [namespace(tmp_path)]


@pytest.mark.threat(32)
@pytest.mark.parametrize("content", ["bundle", ".tmp-n1-x", "quarantine/x.json"])
def test_a_namespace_that_has_anything_stays(tmp_path: Path, content: str) -> None:
    path = emptied(tmp_path)
    if content == "bundle":
        publish(tmp_path, "b")
    else:
        (path / content).parent.mkdir(exist_ok=True)
        (path / content).touch()
    assert not maintenance.remove_empty(namespace(tmp_path), LATER)
    assert (path / "locks").is_dir()


@pytest.mark.threat(32)
def test_a_publisher_that_comes_meanwhile_keeps_the_namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    emptied(tmp_path)
    rmdir = os.rmdir

    def late(path: str, *, dir_fd: int | None = None) -> None:
        if path == namespace(tmp_path).path:
            publish(tmp_path, "b")
        rmdir(path, dir_fd=dir_fd)

    monkeypatch.setattr(os, "rmdir", late)
    assert not maintenance.remove_empty(namespace(tmp_path), LATER)
    monkeypatch.undo()
    (offer,) = bundles.offers(str(tmp_path), ["user-1"], "numba", "ns", OWNER).offers
    assert offer.entries == ["b"]
