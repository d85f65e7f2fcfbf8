"""Bundles with the real tools and real uids: from a job's cache into the store and into another job's cache."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import filelock  # noqa: F401 - so that not every child imports it
import pytest

from tests.lib import mounts
from tests.lib.bundles import draft
from tests.lib.collecting import collected
from tests.lib.node import Node, one
from warmstart.caches.store import client as caches
from warmstart.caches.store.layout import File
from warmstart.caches.store.listing import Row
from warmstart.caches.store.look import Layer
from warmstart.harvest.collect import Collected
from warmstart.harvest.pack import pack
from warmstart.host.deadline import after
from warmstart.host.files import DiskFailed, opened_dir
from warmstart.host.identity import Identity
from warmstart.seed.client import JobClient
from warmstart.seed.copies import path_of
from warmstart.seed.extract import Source, extract
from warmstart.seed.node_cache import get

pytestmark = pytest.mark.usefixtures("capable_host")

JOB = Identity("a job", 64201, 64201)
OTHER = Identity("another job", 64202, 64202)
ROUNDS = 8
CACHE = {
    "m/f.1.nbi": b"index",
    "m/f.1.nbc": os.urandom(300_000),
    "m/g <locals>.2.nbi": b"x" * 5000,
    "top.3.nbi": b"",
    "m/deep/er/h.4.nbi": b"h",
}


@pytest.fixture
def node(base: Path) -> Node:
    """Return a node whose store has an owner of its own."""
    return Node(base)


def new_dir(path: Path, identity: Identity | None = None) -> Path:
    """Make a directory that belongs to root, mode 0700, or to `identity`."""
    path.mkdir(0o700)
    if identity is not None:
        os.chown(path, identity.uid, identity.gid)
    return path


def harvested(base: Path, content: dict[str, bytes]) -> tuple[int, Collected]:
    """Write a cache as the job, collect it and pack it into `bundle.sqsh`. Return the bundle and its entries."""
    cache, stage = new_dir(base / "cache", JOB), new_dir(base / "stage")
    for path, data in content.items():
        (cache / path).parent.mkdir(parents=True, exist_ok=True)
        (cache / path).write_bytes(data)
        (cache / path).chmod(0o6755)
        os.utime(cache / path, ns=(7, 1_700_000_000_500_000_000))
    subprocess.run(["/bin/chown", "-R", f"{JOB.uid}:{JOB.gid}", str(cache)], check=True)
    found = collected(cache, stage, owner=JOB.uid)
    return pack(str(stage), str(base / "bundle.sqsh"), after(20)), found


def fetched(node: Node, row: Row) -> int:
    """Have this node's copy of a bundle; return the bytes fetched."""
    store = node.client()
    return get(str(node.base / "bundles"), node.namespace(), row, store=store, most_bytes=1 << 30, deadline=after(20))


@pytest.mark.threat(5)
def test_from_one_jobs_cache_into_anothers(node: Node) -> None:
    """The next job gets what one job compiled: same names and bytes, its own uid, times to the second."""
    fd, found = harvested(node.base, CACHE)
    client = node.client()
    files = {entry: {path: File(*file) for path, file in every.items()} for entry, every in found.entries.items()}
    made = caches.publish(client, node.namespace(), fd, draft()._replace(entries=files), after(20), quota=0)
    os.close(fd)
    (row,) = node.listing().rows
    assert (row.sha256, row.size, row.number) == (made.sha256, made.size, len(CACHE))
    assert [fetched(node, row) for _ in range(2)] == [row.size, 0]
    cache = new_dir(node.base / "other", OTHER)
    with opened_dir(str(cache)) as parent:
        extract(
            [Source(path_of(str(node.base / "bundles"), row.sha256), None)],
            parent,
            "numba",
            OTHER,
            OTHER.uid,
            after(20),
        )
    paths = [cache / "numba", *(cache / "numba").rglob("*")]
    assert {str(path.relative_to(paths[0])): path.read_bytes() for path in paths if path.is_file()} == CACHE
    assert {(path.lstat().st_uid, path.lstat().st_gid) for path in paths} == {(OTHER.uid, OTHER.gid)}
    assert {oct(path.lstat().st_mode) for path in paths[1:]} <= {"0o40777", "0o100666"}
    assert oct(paths[0].lstat().st_mode) == "0o40700"
    assert (paths[0] / "m/f.1.nbi").stat().st_mtime == 1_700_000_000


def test_a_failed_extraction_leaves_nothing(node: Node) -> None:
    """If the disk fills up midway, the job's cache is empty, not half full."""
    fd, found = harvested(node.base, {f"e{number}.1.x": os.urandom(200_000) for number in range(20)})
    os.close(fd)
    row = Row("ab" * 32, 0, len(found.entries), "a", 1, 7, 0)
    os.rename(node.base / "bundle.sqsh", path_of(str(node.base), row.sha256))
    (node.base / f"{row.sha256}.json").write_text("[]\n" + json.dumps(found.entries))
    with mounts.tmpfs(node.base / "small", size="1m") as small:
        os.chown(small, JOB.uid, JOB.gid)
        with opened_dir(str(small)) as parent, pytest.raises(DiskFailed):
            JobClient(parent, JOB, OTHER).unpack(
                str(node.base), [Layer("user-1", row, [*found.entries])], "numba", after(20)
            )
        assert (os.listdir(small), os.listdir(small / "numba")) == (["numba"], [])


@pytest.mark.threat(4)
def test_a_link_in_the_job_cache_leads_extraction_nowhere_of_roots(node: Node) -> None:
    """A user's process may plant a link: the writer has only the user's rights."""
    fd, _ = harvested(node.base, {"m/f.1.x": b"mine"})
    os.close(fd)
    roots, cache = new_dir(node.base / "roots"), new_dir(node.base / "other", JOB)
    (cache / "numba").mkdir()
    (cache / "numba/m").symlink_to(roots)
    subprocess.run(["/bin/chown", "-hR", f"{JOB.uid}:{JOB.gid}", str(cache)], check=True)
    with opened_dir(str(cache)) as parent, pytest.raises(DiskFailed):
        extract([Source(str(node.base / "bundle.sqsh"), None)], parent, "numba", JOB, JOB.uid, after(20))
    assert os.listdir(roots) == []


def test_of_eight_prologs_at_once_one_fetches_a_bundle(node: Node) -> None:
    node.publish(one("a", os.urandom(4_000_000)))
    (row,) = node.listing().rows
    sizes = in_processes(8, lambda _: fetched(node, row))
    assert sorted(sizes) == [0] * 7 + [row.size]


def in_processes(count: int, act: Callable[[int], object]) -> list[Any]:
    """Run `act(number)` in that many processes at once. Return their results, passed as JSON."""
    running = []
    for number in range(count):
        read, write = os.pipe()
        pid = os.fork()
        if not pid:
            status = 1
            try:
                os.write(write, json.dumps(act(number)).encode())
                status = 0
            finally:
                os._exit(status)
        os.close(write)
        running.append((pid, read))
    answers = []
    for pid, read in running:
        with open(read, "rb") as pipe:
            answers.append(pipe.read())
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    return [json.loads(answer) for answer in answers]


@pytest.mark.threat(16)
def test_four_publishers_of_the_same_entries(node: Node) -> None:
    """Every reader sees each entry once and whole, and none is lost."""

    def publish(number: int, turn: int) -> None:
        fd = os.memfd_create("bundle")
        os.write(fd, b"%d %d" % (number, turn))
        client = node.client()
        made = draft(f"shared-{turn}", f"own-{number}-{turn}")
        caches.publish(client, node.namespace(), fd, made, after(20), quota=0)
        os.close(fd)

    def act(number: int) -> object:
        if number == 4:
            return [node.seen() for _ in range(ROUNDS * 2)]
        for turn in range(ROUNDS):
            publish(number, turn)
        return None

    *_, observed = in_processes(5, act)
    final = node.seen()
    assert len(final) == ROUNDS * 5
    assert all(final.keys() >= moment.keys() for moment in observed)
