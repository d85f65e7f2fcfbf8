"""`warmstart maintain --store` with ever more bundles, most of which need nothing."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.cluster import installation
from tests.support.bench_site import BenchSite, bench_site
from tests.support.privileges import drop_to
from tools.growth.hooks import packed
from tools.growth.measure import counted_in_all, timed
from warmstart.store import index, layout, manifest
from warmstart.store.layout import Namespace
from warmstart.store.manifest import Entries, Manifest, Producer

POLICY = """\
version: 1
paths: {{workspace: {base}/workspace, store: {base}/store, audit: {base}/audit/audit.jsonl}}
rules:
  - name: everyone
    profiles: [numba]
"""
PER_USER = 100  # bundles
PER_NAMESPACE = 3  # fewer than maintenance merges
CROWDED = 100  # of so many users one has a namespace with bundles to merge
TO_MERGE = 4


class Point(NamedTuple):
    """What one run of the store's maintenance takes with so many bundles."""

    bundles: int
    users: int
    calls: int
    rss_mib: float
    seconds: float


class _Packed(NamedTuple):
    data: bytes
    entries: Entries


def maintenance(sizes: Sequence[int]) -> Iterator[Point]:
    """Time the first run after bundles were added, which also merges some, and count the calls of the second."""
    with bench_site(1) as site:
        installation.write_policy(site.prefix, POLICY.format(base=site.base))
        kinds = [_content(site.base, number) for number in range(TO_MERGE)]
        argv = [str(site.prefix / "bin" / "warmstart"), "maintain", "--store"]
        there = 0
        for size in sizes:
            users = size // PER_USER
            _as_owner(site, partial(_fill, site, range(there, users), kinds))
            there = users
            done = timed(argv, {})
            yield Point(size, users, counted_in_all(argv, {}, site.base / "strace"), done.rss_mib, done.ms / 1000)


def _content(base: Path, number: int) -> _Packed:
    fd, entries = packed(base, number)
    with open(fd, "rb") as file:
        return _Packed(file.read(), entries)


def _as_owner(site: BenchSite, act: Callable[[], None]) -> None:
    pid = os.fork()
    if not pid:
        status = 1
        try:
            drop_to(site.owner.uid, site.owner.gid)
            os.umask(0o022)
            act()
            status = 0
        finally:
            os._exit(status)
    if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
        raise RuntimeError("the store could not be filled")


def _fill(site: BenchSite, users: Iterable[int], kinds: Sequence[_Packed]) -> None:
    """Write the bundles of users as publishers leave them, and each namespace's index."""
    made = (time.time_ns() // 1000) - 10_000_000_000
    for user in users:
        for number in range(0, PER_USER, PER_NAMESPACE):
            is_crowded = number == 0 and user % CROWDED == 0
            name = hashlib.sha256(f"{user} {number}".encode()).hexdigest()[:32]
            where = Namespace(str(site.base / "store"), f"user-{2000 + user}-u{user}", "numba", name)
            fd = layout.make_namespace(where)
            for kind in kinds[: TO_MERGE if is_crowded else min(PER_NAMESPACE, PER_USER - number)]:
                made += 1
                _write(fd, where, kind, user, made)
            index.update(fd, "growth")
            os.close(fd)


def _write(fd: int, where: Namespace, kind: _Packed, user: int, made: int) -> None:
    """Write one bundle. Its number behind the squashfs gives it a hash of its own, by which a scrub chooses."""
    data = kind.data + made.to_bytes(8, "big")
    sha256 = hashlib.sha256(data).hexdigest()
    bundle = layout.bundle_id(made, sha256)
    producer = Producer(7, f"u{user}", 2000 + user, "n1", "c")
    said = Manifest(
        bundle, sha256, len(data), made / 1e6, where.scope, where.profile, where.name, producer, {}, kind.entries
    )
    for name, content in ((bundle + layout.BUNDLE, data), (bundle + layout.MANIFEST, manifest.encode(said))):
        file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444, dir_fd=fd)
        os.write(file, content)
        os.close(file)
