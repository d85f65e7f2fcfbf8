"""What maintenance finds and decides in the store: which bundles go, which become one, which are damaged."""

from __future__ import annotations

import hashlib
import os
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.lib.bundles import OWNER, draft, namespace, publish
from tests.lib.policy_site import defaults
from warmstart.caches.store import bundles, gc, generations, layout
from warmstart.caches.store.gc import Bundle, What
from warmstart.caches.store.listing import Listing, Row
from warmstart.caches.store.merge import Removal

WHOLES = "whole-things"
POLICY = defaults().maintenance._replace(keep=100, per_user=10)
LATER = time.time() + 2 * gc.DAY


def bundle(name: str, used: float, size: int = 1, scope: str = "user-1-a", names: int = 1) -> Bundle:
    return Bundle(scope, "numba", "ns", name, size, 1, "a", 1, 7, 0.0, used, names)


def test_unused_bundles_go_first_then_the_least_used_of_a_scope() -> None:
    found = [
        bundle("unused", 0), bundle("older", 150, 6), bundle("newer", 160, 6), bundle("other", 120, 9, "user-2-b"),
        bundle("team", 120, 89, "account-t"), bundle("all", 130, 401, "site"),
    ]  # fmt: skip
    going = {one.bundle: reason for one, reason in gc.expired(found, POLICY, 200).items()}
    assert going == {"unused": gc.UNUSED, "older": gc.OVER, "all": gc.OVER}


def test_a_whole_that_a_job_may_be_reading_stays() -> None:
    now = 1_000_000.0
    read = bundle("read", now - 7200, 6)._replace(profile=WHOLES)
    cache = bundle("cache", now - 100, 6)
    policy = POLICY._replace(keep=10**9)
    assert [*gc.expired([read, cache], policy, now)] == [cache]
    assert [*gc.expired([read, cache], policy, now + 7200)] == [read]


@pytest.mark.threat(24)
def test_names_close_to_their_bound_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "MOST_OF_USER", 100)
    heavy = [bundle("older", 150, names=50), bundle("newer", 160, names=45)]
    site = [one._replace(scope="site", user=one.bundle) for one in heavy]
    assert gc.expired([*heavy, *site], POLICY, 200) == {heavy[0]: gc.OVER_NAMES}


def test_every_bundle_is_checked_once_in_thirty_days() -> None:
    found = [bundle(row(number).sha256, 0) for number in range(200)]
    days = Counter(one.bundle for day in range(1000, 1030) for one in found if gc.is_due(one, day * gc.DAY))
    assert set(days.values()) == {1}
    assert len(days) == 200


def test_what_a_reader_finds_damaged_is_checked_today(tmp_path: Path) -> None:
    """If it was the reader's fault, nobody doubts it any more."""
    made = publish(tmp_path, "a")
    where, path = namespace(tmp_path), Path(namespace(tmp_path).path, f"{made.sha256}.sqsh")
    whole = path.read_bytes()
    days = [day * gc.DAY for day in range(30)]
    for found in (b"x" * len(whole), None):
        rewritten(path, found)
        assert gc.damage(where, made.sha256, made.size)
        (doubted,) = gc.survey(where)
        assert all(gc.is_due(doubted, day) for day in days)
        rewritten(path, whole)
        assert gc.damage(where, made.sha256, made.size) == ""
        assert not gc.survey(where)[0].is_doubted
    rewritten(path, b"other")
    assert gc.damage(where, made.sha256, made.size)
    gc.take_out(where, "w", gc.What([made.sha256]))
    assert [name for name in os.listdir(where.path) if made.sha256 in name] == []


def rewritten(path: Path, data: bytes | None) -> None:
    """Have a file of the store's owner in place, or none."""
    path.unlink(missing_ok=True)
    if data is not None:
        path.write_bytes(data)
        path.chmod(0o444)


def test_the_survey_tells_the_last_use_and_uses_are_recorded_once_a_day(tmp_path: Path) -> None:
    made = publish(tmp_path, "a").sha256
    path = Path(namespace(tmp_path).path, f"{made}.sqsh")
    os.utime(path, (1_000_000, 1_000_000))
    where = namespace(tmp_path)
    assert gc.record_uses([(where, made, 1_050_000.0), (where, "../../x", 9e9)]) == 0
    assert gc.record_uses([(where, made, 1_200_000.0), (where, made, 1_200_001.0)]) == 1
    (row,) = gc.survey(namespace(tmp_path))
    assert (row.bundle, row.used, row.user, row.entries) == (made, 1_200_000.0, "a", 1)
    path.unlink()
    (row,) = gc.survey(namespace(tmp_path))
    assert row.used == 0.0


def test_what_is_taken_out_is_gone_with_its_files(tmp_path: Path) -> None:
    where = namespace(tmp_path)
    first = publish(tmp_path, "a", "b").sha256
    publish(tmp_path, "c", user="b", uid=2)
    assert gc.take_out(where, OWNER, What(entries=["b", "d"])) == ([], 1)
    assert [row.entries for row in gc.survey(where)] == [1, 1]
    assert [row.sha256 for row in gc.take_out(where, OWNER, What(users=["a"])).rows] == [first]
    assert not [name for name in os.listdir(where.path) if name.startswith(first)]
    assert gc.take_out(where, OWNER, What(users=["a"])) == ([], 0)
    assert len(gc.take_out(where, OWNER, What(before=time.time() + 1)).rows) == 1
    assert gc.survey(where) == []


# Compaction.


def row(number: int, entries: int = 1, user: str = "a", size: int = 1) -> Row:
    return Row(hashlib.sha256(b"%d" % number).hexdigest(), size, entries, user, ord(user), 7, number)


def listing(*rows: Row) -> Listing:
    return Listing(rows=[*rows], names=[[f"{one.sha256[:8]}{n}" for n in range(one.number)] for one in rows])


def test_a_merged_bundle_has_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gc, "MOST_MERGED_BYTES", 10)
    large, small, middle, other = row(1, size=9), row(2, size=4), row(3, size=5), row(4, user="b")
    found = listing(large, small, other, middle)
    (merger,) = gc.mergers(found, 2, {})
    assert (merger.rows, merger.names) == ([small, middle], [found.names[1], found.names[3]])
    assert gc.mergers(found, 3, {}) == []
    monkeypatch.setattr(gc, "MOST_ENTRIES", 4)
    (merger,) = gc.mergers(listing(row(1, 2), row(2, 3, size=2), row(3, 1)), 2, {})
    assert merger.rows == [row(1, 2), row(3, 1)]
    monkeypatch.setattr(gc, "MOST_MERGED", 2)
    (merger,) = gc.mergers(listing(row(1), row(2), row(3)), 2, {})
    assert len(merger.rows) == 2
    lengths = {row(1).sha256: layout.MOST_OF_FILES, row(2).sha256: 1}
    assert gc.mergers(listing(row(1), row(2)), 2, lengths) == []


# Outside of the listings.


def test_what_hides_entries_of_others_is_remembered_longer(tmp_path: Path) -> None:
    where = namespace(tmp_path)
    hides = draft()._replace(removal=Removal({}, ["stale"]))
    bundles.publish(where, OWNER, None, hides, 0)
    assert not bundles.remove_empty(where, LATER, LATER - 3 * gc.DAY)
    assert generations.read(where).hide == ["stale"]
    assert bundles.remove_empty(where, LATER, LATER)


def test_what_a_publisher_left_that_died_early_goes(tmp_path: Path) -> None:
    """Before there was a listing."""
    where = namespace(tmp_path)
    os.makedirs(where.path)
    assert bundles.sweep(where, LATER) == []
    assert gc.survey(where) == []
    assert bundles.remove_empty(where, LATER, 0.0)
    assert not os.path.exists(where.path)


def test_the_stores_own_directories_are_swept(tmp_path: Path) -> None:
    """Temporary files and locks of makers are removed after a day, a board after a week; nothing else is removed."""
    publish(tmp_path, "a")
    assert gc.lock(str(tmp_path))
    assert gc.lock_making(namespace(tmp_path))
    gc.record_maintained(str(tmp_path))
    (tmp_path / "runs" / "c.8.0").mkdir(parents=True)  # of a job whose head node died
    (tmp_path / "runs" / "c.8.0" / "caches.proposal").touch()
    left = [".maintained.7.tmp", ".tmp-n1-dead"]
    for name in left:
        (tmp_path / "caches" / name).touch()
    now = time.time()
    assert gc.sweep_top(str(tmp_path), now + 80_000) == []
    swept = [f"caches/{name}" for name in (*left, ".locks/making.user-1.ns")]
    assert gc.sweep_top(str(tmp_path), now + 90_000) == swept
    assert gc.sweep_top(str(tmp_path), now + 700_000) == ["runs/c.8.0"]
    assert sorted(os.listdir(tmp_path / "caches")) == [".locks", "maintained", "user-1"]
    assert 0 <= (gc.last_maintained(str(tmp_path)) or -1) < 60
