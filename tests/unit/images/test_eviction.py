"""Room in the store: what goes, in which order, what never goes; and what was damaged."""

from __future__ import annotations

import fcntl
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lib.policy_site import defaults
from tests.lib.superblocks import image
from warmstart.images.store import eviction, published, uses
from warmstart.images.store.eviction import inventory
from warmstart.images.store.layout import NOBODY, Charged

LEASE = 1000


KEEP = defaults().images.keep._replace(high=80, low=50, lease=LEASE)


SIZE = len(image())


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "store" / "images").mkdir(parents=True)
    return tmp_path / "store"


def put(store: Path, name: str, age: float, **known: object) -> None:
    """Publish an image that was used `age` seconds ago and never since."""
    path = store / "images" / f"{name}.sqsh"
    path.write_bytes(image())
    os.utime(path, (time.time() - age,) * 2)
    (store / "images" / f"{name}.json").write_text(json.dumps(known))


def there(store: Path) -> list[str]:
    return sorted(path.name.removesuffix(".sqsh") for path in (store / "images").glob("[!.]*.sqsh"))


def fill(monkeypatch: pytest.MonkeyPatch, store: Path, capacity: int) -> None:
    """Let the store's file system hold that many images and nothing else."""

    def measured(_: str) -> tuple[int, int]:
        used = len(list((store / "images").glob("*.sqsh")))
        return capacity * SIZE, (capacity - used) * SIZE

    monkeypatch.setattr(eviction, "_space", measured)


def make_room(store: Path, need: int = 0, **keep: int) -> list[str]:
    """Make room as a producer whose import counts for nobody."""
    return eviction.make_room(str(store), need, KEEP._replace(**keep), NOBODY)


def test_the_least_recently_used_go_down_to_the_low_mark(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(9):
        put(store, f"i{number}", 9000 - number)
    uses.record(str(store), "i1", "n1")
    os.utime(store / "images" / "used" / "i1" / "n1", (time.time() - 5000,) * 2)
    fill(monkeypatch, store, 10)
    assert make_room(store) == ["i0", "i2", "i3", "i4"]
    assert there(store) == ["i1", "i5", "i6", "i7", "i8"]
    assert make_room(store) == []
    assert not (store / "images" / "i0.json").exists()


def test_a_damaged_image_goes_after_the_lease(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, "i0", 9000)
    (store / "images" / "i0.sqsh").write_bytes(b"x" * SIZE)
    assert published.put_away(str(store), "i0")
    fill(monkeypatch, store, 10)
    make_room(store, lease=3600)
    assert len(list((store / "images").glob(".damaged-i0.*"))) == 1
    make_room(store, lease=0)
    assert list((store / "images").glob(".damaged-*")) == []


def test_what_may_be_in_use_is_never_evicted(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, "live", 9000)
    uses.record(str(store), "live", "n7")
    put(store, "pinned", 9000)
    eviction.pin(str(store), "pinned", "test")
    put(store, "new", 0)
    put(store, "idle", 9000)
    fill(monkeypatch, store, 4)
    monkeypatch.setattr(eviction, "FLOOR_PERCENT", 0)
    assert make_room(store) == ["idle"]
    assert [entry.protected for entry in inventory(str(store), LEASE)] == ["pinned", "in use", "new"]
    assert [entry.nodes for entry in inventory(str(store), LEASE)] == [[], ["n7"], []]
    assert eviction.unpin(str(store), "pinned") is True
    assert eviction.unpin(str(store), "pinned") is False
    assert eviction.evict(str(store), "pinned", LEASE) is True


def test_a_store_without_room_says_so(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(store, "new", 0)
    fill(monkeypatch, store, 2)
    with pytest.raises(OSError, match=rf"the file system of {store} has \S+ free; the image has \S+, and \S+ must"):
        make_room(store, need=SIZE)
    make_room(store, need=SIZE // 2)


@pytest.fixture
def another(store: Path) -> Iterator[Callable[[], None]]:
    """Hold the eviction's lock as another process does; yield what lets it go."""
    locks = store / "images" / "locks"
    locks.mkdir(mode=0o700)
    fd = os.open(locks / eviction.LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(fd, fcntl.LOCK_EX)
    yield lambda: fcntl.flock(fd, fcntl.LOCK_UN)
    os.close(fd)


@pytest.mark.report
def test_room_that_another_process_makes_is_waited_for(
    store: Path, monkeypatch: pytest.MonkeyPatch, another: Callable[[], None]
) -> None:
    """An import is not told that the store is full while images go, nor lets a quota be."""
    put(store, "old", 9000, uid=1)
    fill(monkeypatch, store, 2)

    def evicts() -> None:
        eviction.evict(str(store), "old", LEASE)
        another()

    end = threading.Timer(0.3, evicts)
    end.start()
    assert make_room(store, need=SIZE) == []
    end.join()
    assert there(store) == []


@pytest.mark.report
def test_a_process_that_makes_room_for_ever_is_not_waited_for(
    store: Path, monkeypatch: pytest.MonkeyPatch, another: Callable[[], None]
) -> None:
    """It may be stopped. Two that evict at the same time are safe; at worst an image more goes."""
    put(store, "old", 9000)
    fill(monkeypatch, store, 2)
    monkeypatch.setattr(eviction, "PATIENCE_S", 0.1)
    assert make_room(store, need=SIZE) == ["old"]
    another()


def test_a_store_without_inodes_says_so(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = os.statvfs(store)
    none = os.statvfs_result((*disk[:5], 100, 0, 0, *disk[8:]))
    monkeypatch.setattr(os, "statvfs", lambda _path: none)
    with pytest.raises(OSError, match=f"the file system of {store} has no inode left"):
        make_room(store)


def test_a_quota_takes_the_owners_own_images(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Row 15 of docs/threats.md: a user's many tags drive out that user's own images, and nobody else's."""
    put(store, "theirs", 9000, uid=2)
    put(store, "mine-old", 8000, uid=1)
    put(store, "mine-new", 7000, uid=1)
    keep, alice = KEEP._replace(high=100), Charged("alice", 1)
    fill(monkeypatch, store, 100)
    assert eviction.make_room(str(store), SIZE, keep, alice) == []
    fill(monkeypatch, store, 4)
    monkeypatch.setattr(eviction, "FLOOR_PERCENT", 0)
    assert eviction.make_room(str(store), SIZE, keep, alice) == ["mine-old"]
    uses.record(str(store), "mine-new", "n1")
    with pytest.raises(eviction.ImageQuotaExceeded) as raised:
        eviction.make_room(str(store), 2 * SIZE, keep, alice)
    assert raised.value.fields == {"bytes": 2 * SIZE, "user": "alice", "taken": SIZE, "quota": 2 * SIZE}
    assert there(store) == ["mine-new", "theirs"]


def test_a_mark_made_while_it_was_going_brings_an_image_back(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that marks its use when the image is out of sight keeps it: the eviction looks again."""
    put(store, "idle", 9000)
    rename = os.rename

    def marking(*arguments: object, **more: object) -> None:
        rename(*arguments, **more)  # type: ignore[arg-type]
        monkeypatch.setattr(os, "rename", rename)
        uses.record(str(store), "idle", "n1")

    monkeypatch.setattr(os, "rename", marking)
    assert eviction.evict(str(store), "idle", LEASE) is False
    assert there(store) == ["idle"]


def test_an_eviction_that_died_is_ended(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("gone", "back"):
        put(store, name, 9000)
        (store / "images" / f"{name}.sqsh").rename(store / "images" / f".evicted-{name}.sqsh")
    uses.record(str(store), "back", "n1")
    (store / "images" / "locks").mkdir(mode=0o700)
    (store / "images" / "locks" / "key.producer").write_text("{}")
    temp = store / "images" / ".tmp-x"
    temp.touch()
    os.utime(temp, (time.time() - 7200,) * 2)
    fill(monkeypatch, store, 100)
    make_room(store)
    assert there(store) == ["back"]
    assert list((store / "images").glob(".*")) == []
    assert list((store / "images" / "locks").glob("*.producer")) == []


def test_forced_means_forced(store: Path) -> None:
    """A person may remove what is protected; without that, the answer is no."""
    put(store, "live", 0)
    uses.record(str(store), "live", "n1")
    assert [eviction.evict(str(store), "live", LEASE, force) for force in (False, True, True)] == [False, True, False]
    assert eviction.describe(str(store), "live", LEASE) is None


def test_a_store_that_nothing_was_imported_into_is_empty_and_none_is_an_error(tmp_path: Path) -> None:
    assert inventory(str(tmp_path), LEASE) == []
    with pytest.raises(FileNotFoundError):
        inventory(str(tmp_path / "nowhere"), LEASE)


def test_private_stores_are_looked_after_too(store: Path) -> None:
    (store / "private" / "team" / "images").mkdir(parents=True)
    (store / "private" / "empty").mkdir()
    assert eviction.stores(str(store)) == [str(store), f"{store}/private/team"]
    assert eviction.stores(str(store / "nowhere")) == []
