"""Jobs that would fill the disk of a node's state (docs/threats.md, rows 23 and 26). Needs root for a small disk."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lib import mounts
from tests.lib.collecting import collected
from tests.lib.node import Node, one
from warmstart.caches.store.bundles import BundleDamaged
from warmstart.caches.store.listing import Row
from warmstart.harvest.collect import Collected
from warmstart.harvest.stage import STAGE_FULL
from warmstart.host import space
from warmstart.host.deadline import after
from warmstart.host.files import DiskFailed, opened_dir
from warmstart.host.space import Reservation
from warmstart.seed.node_cache import get

pytestmark = pytest.mark.usefixtures("capable_host")

MIB = 1 << 20
JOB = 64201


@pytest.fixture
def disk(base: Path) -> Iterator[Path]:
    with mounts.tmpfs(base / "disk", size="64m", inodes=10_000) as small:
        yield small


@pytest.fixture
def tree(base: Path) -> Path:
    """Return the directory that has a job's `tree`, on another disk."""
    (base / "tree").mkdir()
    os.chown(base / "tree", JOB, JOB)
    return base


def write(tree: Path, name: str, data: bytes, length: int = 0) -> None:
    """Write a file of the job, with a hole up to `length`."""
    path = tree / "tree" / name
    path.write_bytes(data)
    os.truncate(path, max(length, len(data)))
    os.chown(path, JOB, JOB)


def harvest(tree: Path, stage: Path) -> Collected:
    return collected(tree / "tree", stage, owner=JOB)


def used(disk: Path) -> int:
    found = os.statvfs(disk)
    return (found.f_blocks - found.f_bfree) * found.f_frsize


@pytest.mark.threat(23)
def test_holes_take_no_space(tree: Path, disk: Path) -> None:
    for number in range(20):
        write(tree, f"f{number}", b"data", 16 * MIB)
    found = harvest(tree, disk / "stage")
    assert (len(found.entries), found.truncated) == (20, "")
    assert used(disk) < MIB
    staged = disk / "stage" / "f0"
    assert staged.stat().st_size == 16 * MIB
    assert staged.read_bytes() == b"data".ljust(16 * MIB, b"\0")


@pytest.mark.threat(23)
def test_epilogs_do_not_count_on_the_same_space(tree: Path, disk: Path) -> None:
    for number in range(60):
        write(tree, f"f{number:02}", os.urandom(MIB))
    with opened_dir(str(disk)) as fd:
        other = Reservation(fd)
        other.hold(20 * MIB)
        found = harvest(tree, disk / "stage")
        assert found.truncated == STAGE_FULL
        assert 5 < len(found.entries) < 20
        bundle = sum(file.size for files in found.entries.values() for file in files.values())
        other.hold(0)
    (disk / "other").write_bytes(b"x" * 20 * MIB)
    (disk / "own").write_bytes(b"x" * bundle)
    assert space.room(str(disk)) >= 0
    floor = 64 * MIB // 20
    assert os.statvfs(disk).f_bavail * 4096 >= floor


@pytest.mark.threat(23)
def test_what_dies_with_a_reservation_leaves_none(disk: Path) -> None:
    before = used(disk)
    pid = os.fork()
    if not pid:
        with opened_dir(str(disk)) as fd:
            Reservation(fd).hold(30 * MIB)
            os.kill(os.getpid(), 9)
    os.waitpid(pid, 0)
    assert used(disk) == before
    assert os.listdir(disk) == []


def published(base: Path, size: int) -> tuple[Node, Row]:
    """Return a node beside a store with one bundle, and its row."""
    node = Node(base)
    node.publish(one("a", os.urandom(size)))
    (row,) = node.listing().rows
    return node, row


def fetch(node: Node, disk: Path, row: Row) -> None:
    """Fetch a bundle to the node's disk."""
    directory, where = str(disk / "bundles"), node.namespace()
    store = node.client()
    get(directory, where, row, store=store, most_bytes=1 << 40, deadline=after(20))


@pytest.mark.threat(26)
def test_a_bundle_that_leaves_too_little_is_not_fetched(base: Path, disk: Path) -> None:
    """Nothing of it is on the disk."""
    node, row = published(base, 62 * MIB)
    with pytest.raises(DiskFailed, match=rf"the disk of {disk}/bundles has no room for 63 MiB: \d+ MiB and \d+ of"):
        fetch(node, disk, row)
    assert os.listdir(disk / "bundles") == []
    assert used(disk) < MIB


@pytest.mark.threat(26)
def test_nothing_is_left_of_a_fetch_that_failed(base: Path, disk: Path) -> None:
    """The bytes in the store are not those of the manifest. The next fetch is not disturbed."""
    node, row = published(base, 8 * MIB)
    (stored,) = node.directory().glob("*.sqsh")
    whole = stored.read_bytes()
    stored.chmod(0o600)
    stored.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(BundleDamaged):
        fetch(node, disk, row)
    assert os.listdir(disk / "bundles") == []
    assert used(disk) < MIB
    stored.write_bytes(whole)
    fetch(node, disk, row)
    assert (disk / "bundles" / f"{row.sha256}.sqsh").read_bytes() == whole
