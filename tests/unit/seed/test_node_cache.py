"""This node's copies of bundles: fetched once, whoever dies, and removed by their last use. Mounts need root."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmstart.caches.store import bundles
from warmstart.caches.store.bundles import BundleGone, Draft
from warmstart.caches.store.layout import BUNDLE, FILES, File, Namespace
from warmstart.caches.store.listing import Row
from warmstart.host import copying
from warmstart.host.deadline import after
from warmstart.host.identity import Identity, WorkerSilent
from warmstart.seed import copies, eviction, node_cache
from warmstart.seed.copies import FetchOverBudget
from warmstart.seed.eviction import IN_USE_S
from warmstart.store.client import StoreClient

WHOLES = "whole-things"

ME = Identity("me", os.getuid(), os.getgid())
HOUR_AGO = IN_USE_S + 1


class Node(NamedTuple):
    """A store with one bundle, and a node's directory for copies, which is not there yet."""

    base: Path
    client: StoreClient

    @property
    def directory(self) -> Path:
        return self.base / "bundles"

    @property
    def where(self) -> Namespace:
        return Namespace(str(self.base / "store"), "user-1", "numba", "ns")

    def publish(self, *entries: str, content: bytes) -> Row:
        """Put a bundle into the store; return its row."""
        fd = os.memfd_create("bundle")
        os.write(fd, content)
        found = {entry: {f"{entry}.nbi": File(3, "ab" * 32, 17)} for entry in entries}
        row = bundles.put(self.where, "n1-test", fd, Draft("a", 1000, 7, found), 0)
        os.close(fd)
        return row

    def get(self, row: Row, *, most: int = 1 << 20, seconds: float = 30) -> int:
        until = after(seconds)
        return node_cache.get(str(self.directory), self.where, row, store=self.client, most_bytes=most, deadline=until)

    def copy(self, row: Row) -> Path:
        """Fetch a bundle if it is not there; return the path of its copy."""
        self.get(row)
        return Path(copies.path_of(str(self.directory), row.sha256))

    def names(self) -> set[str]:
        """Return what the directory holds, without the hashes."""
        return {name.partition(".")[2] for name in os.listdir(self.directory)}

    def prune(self, keep: int, wholes: int = 0) -> int:
        return eviction.prune(str(self.directory), str(self.base / "layers"), {"": keep, WHOLES: wholes}, time.time())


@pytest.fixture
def node(tmp_path: Path) -> Node:
    (tmp_path / "store").mkdir()
    client = StoreClient(ME, str(tmp_path / "store"), "n1-test")
    return Node(tmp_path, client)


def age(copy: Path, seconds: float) -> None:
    """Have a copy used so long ago, and all that lies beside it."""
    then = time.time() - seconds
    for path in copy.parent.glob(f"{copy.stem}*"):
        os.utime(path, (then, then))


def test_a_bundle_is_fetched_once(node: Node) -> None:
    row = node.publish("a", "b", content=b"squashfs")
    assert node.get(row) == 8
    copy = node.copy(row)
    assert copy.read_bytes() == b"squashfs"
    assert [*copies.entries_of(str(node.directory), row.sha256, ["b"])] == ["a", "b"]
    with pytest.raises(bundles.BundleDamaged):
        copies.entries_of(str(node.directory), row.sha256, ["c"])
    assert node.names() == {"sqsh", "json"}
    assert stat.S_IMODE(node.directory.stat().st_mode) == 0o700
    assert stat.S_IMODE(copy.stat().st_mode) == 0o444
    age(copy, HOUR_AGO)
    assert node.get(row, most=0) == 0
    assert time.time() - copy.stat().st_mtime < 600


def test_another_jobs_fetch_is_waited_for_until_the_deadline(node: Node) -> None:
    row = node.publish("a", content=b"whole")
    node.directory.mkdir(mode=0o700)
    with (node.directory / f"{row.sha256}.fetching").open("w+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        held.write("half of another, and longer")
        with pytest.raises(FetchOverBudget, match="another job"):
            node.get(row, seconds=0.05)
    assert node.copy(row).read_bytes() == b"whole"  # it has died
    assert "fetching" not in node.names()


@contextmanager
def that_stops(monkeypatch: pytest.MonkeyPatch, stop: Callable[[], None]) -> Iterator[None]:
    """Let the store's process send eight bytes, and then do that. It is forked with this."""
    real = copying._chunks

    def chunks(*args: Any) -> Iterator[bytes]:  # noqa: ANN401 - as those of the real one
        yield from islice(real(*args), 2)
        stop()

    with monkeypatch.context() as patch:
        patch.setattr(copying, "CHUNK", 4)
        patch.setattr(copying, "_chunks", chunks)
        yield


def begins(node: Node, row: Row, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Have a prolog fetch a bundle of twelve bytes from a store that dies; return what it leaves of it: eight."""
    with that_stops(monkeypatch, lambda: os._exit(1)), pytest.raises(WorkerSilent):
        node.copy(row)
    (beginning,) = node.directory.glob("*.fetching")
    return beginning


@pytest.mark.real_time
def test_the_next_job_goes_on_with_a_fetch(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    row = node.publish("a", content=b"0123456789ab")
    late = pytest.raises(FetchOverBudget, match="8 of 12 bytes came in time")
    with that_stops(monkeypatch, lambda: time.sleep(60)), late:
        node.get(row, seconds=1)
    (beginning,) = node.directory.glob("*.fetching")
    assert beginning.read_bytes() == b"01234567"
    (stored,) = (node.base / "store").rglob("*.sqsh")
    stored.chmod(0o600)
    stored.write_bytes(b"not read89ab")
    assert node.copy(row).read_bytes() == b"0123456789ab"
    assert node.names() == {"sqsh", "json"}


@pytest.mark.threat(41)
def test_a_beginning_counts_as_a_copy_of_its_scope(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    beginning = begins(node, node.publish("a", content=b"0123456789ab"), monkeypatch)
    assert node.names() == {"fetching", "json"}
    size = beginning.stat().st_blocks * 512 + beginning.with_suffix(".json").stat().st_size
    assert size > 512
    for hours, keep in ((0, 0), (2, size), (23, size)):
        then = time.time() - hours * 3600
        for path in node.directory.iterdir():
            os.utime(path, (then, then))
        assert (node.prune(keep), node.names()) == (0, {"fetching", "json"})
    assert (node.prune(size - 1), node.names()) == (size, set())
    put(node, "aa", "numba", 0)
    old = node.directory / "bb.fetching"
    old.write_bytes(b"x")
    os.utime(old, (time.time() - 90_000,) * 2)
    node.prune(1 << 30)
    assert node.names() == {"sqsh", "json"}


@pytest.mark.threat(41)
def test_a_bundle_that_was_removed_meanwhile_leaves_nothing(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    row = node.publish("a", content=b"0123456789ab")
    begins(node, row, monkeypatch)
    for suffix in (BUNDLE, FILES):
        Path(node.where.path, row.sha256 + suffix).unlink()
    with pytest.raises(BundleGone):
        node.copy(row)
    assert node.names() == set()


@pytest.mark.threat(24)
def test_the_least_recently_used_copy_goes_first(node: Node) -> None:
    rows = [node.publish(name, content=name.encode() * 10) for name in "abc"]
    copies = [node.copy(row) for row in rows]
    for copy, seconds in zip(copies, (HOUR_AGO, 3 * HOUR_AGO, 5), strict=True):
        age(copy, seconds)
    (size,) = {copy.stat().st_size + copy.with_suffix(".json").stat().st_size for copy in copies}
    assert size > 100
    assert node.prune(3 * size) == 0
    assert node.prune(3 * size - 1) == size
    assert [copy.exists() for copy in copies] == [True, False, True]
    assert not list(node.directory.glob(f"{copies[1].stem}*"))
    assert node.prune(0) == size
    assert [copy.exists() for copy in copies] == [False, False, True]
    assert eviction.prune(str(node.base / "none"), str(node.base / "layers"), {}, 0.0) == 0


@pytest.mark.threat(27)
def test_nobody_pushes_the_copies_of_others_out(node: Node) -> None:
    for name, scope, hours in (("aa", "user-1", 9), ("bb", "user-2", 8), ("cc", "user-2", 7), ("dd", "user-2", 0)):
        put(node, name, "numba", hours, scope)
    node.prune(2100)
    assert sorted(path.stem for path in node.directory.glob("*.sqsh")) == ["aa", "dd"]


def put(node: Node, name: str, profile: str, hours: int, scope: str = "user-1") -> None:
    """Put a copy of a thousand bytes there that was last used so long ago."""
    node.directory.mkdir(mode=0o700, exist_ok=True)
    (node.directory / f"{name}.sqsh").write_bytes(b"x" * 1000)
    (node.directory / f"{name}.json").write_text(json.dumps([scope, profile, "ns"]))
    then = time.time() - hours * HOUR_AGO
    os.utime(node.directory / f"{name}.sqsh", (then, then))


def test_wholes_have_a_quota_of_their_own(node: Node) -> None:
    for name, profile, hours in (("aa", "numba", 9), ("bb", WHOLES, 8), ("cc", WHOLES, 7), ("dd", "numba", 6)):
        put(node, name, profile, hours)
    assert node.prune(2100, wholes=1100) > 1000
    assert sorted(path.stem for path in node.directory.glob("*.sqsh")) == ["aa", "cc", "dd"]
    assert node.prune(1100, wholes=1100) > 1000
    assert sorted(path.stem for path in node.directory.glob("*.sqsh")) == ["cc", "dd"]


def test_what_the_dead_left_goes(node: Node) -> None:
    """Descriptions of no copy; abandoned fetches at once, since their lock tells."""
    node.directory.mkdir(mode=0o700)
    for name in ("11.fetching", "22.fetching", "33.json", "44.fetching"):
        (node.directory / name).touch()
        if name != "44.fetching":
            os.utime(node.directory / name, (1, 1))
    with (node.directory / "22.fetching").open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        node.prune(0)
    assert sorted(os.listdir(node.directory)) == ["22.fetching"]


def test_where_a_copy_is_from_and_when_it_was_used(node: Node) -> None:
    row = node.publish("a", content=b"x")
    copy = node.copy(row)
    os.utime(copy, (100, 100))
    assert eviction.uses(str(node.directory), node.client.path) == [(node.where, row.sha256, 100.0)]
    for damage in (b"", b"[]", b'{"a": 1}', b"\xff"):
        copy.with_suffix(".json").write_bytes(damage)
        assert eviction.uses(str(node.directory), "/store") == []
    assert eviction.uses(str(node.base / "none"), "/store") == []


@given(st.lists(st.tuples(st.integers(0, 3 * 3600), st.integers(0, 50)), max_size=6), st.integers(0, 200))
def test_the_cache_is_bounded_but_for_what_is_in_use(copies: list[tuple[int, int]], keep: int) -> None:
    now = 1_700_000_000.0
    with tempfile.TemporaryDirectory() as directory:
        for number, (seconds, size) in enumerate(copies):
            path = Path(directory, f"{number}.sqsh")
            path.write_bytes(b"x" * size)
            os.utime(path, (now - seconds, now - seconds))
        before = {path.name: path.stat() for path in Path(directory).iterdir()}
        removed = eviction.prune(directory, f"{directory}-layers", {"": keep}, now)
        left = set(os.listdir(directory))
    gone = sorted((status.st_mtime, status.st_size) for name, status in before.items() if name not in left)
    stay = [(before[name].st_mtime, before[name].st_size) for name in left]
    total = sum(size for _, size in stay)
    assert removed == sum(size for _, size in gone)
    assert total <= keep or all(used > now - IN_USE_S for used, _ in stay)
    assert not gone or (total + gone[-1][1] > keep and gone[-1][0] <= now - IN_USE_S)
    assert not gone or all(gone[-1] <= one for one in stay)
