"""A warm prolog and epilog beside ever more of one thing: images, bundles, jobs on the node, lines of the audit log."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.cluster import installation
from tests.cluster.teardown import unmount_below
from tests.support.bench_site import IMAGE, KIND, BenchSite, bench_site
from tests.support.numba_entries import numba_entries, write_as
from tests.support.sample_log import write as write_log
from tools.growth.measure import Cost, counted, timed
from warmstart.audit import sink
from warmstart.harvest.pack import pack
from warmstart.host.deadline import after
from warmstart.images.reference import parse
from warmstart.images.store import layout
from warmstart.paths import Installation
from warmstart.store import manifest
from warmstart.store.client import StoreClient
from warmstart.store.layout import Namespace
from warmstart.store.manifest import Draft, Entries, File

POLICY = """\
version: 1
paths: {{workspace: {base}/workspace, store: {base}/store, audit: {base}/audit/audit.jsonl}}
images: {{registries: [reg.example.com]}}
rules:
  - name: everyone
    profiles: [numba]
    images: ["{image}"]
"""
FIRST_JOB = 1000
FILES = 1000  # of the image; none is read
MTIME_NS = 1_700_000_000_000_000_000


class Point(NamedTuple):
    """What the two hooks cost at one size."""

    size: int
    prolog: Cost
    epilog: Cost


class Node:
    """A site's node n1 whose jobs' hooks run by hand; a job has a directory of Numba's and an image."""

    def __init__(self, site: BenchSite) -> None:
        self.site = site
        self.store = site.base / "store"
        self.log = site.base / "audit" / "audit.jsonl"
        self._journal = Installation(str(site.prefix)).node(site.job_env["SLURMD_NODENAME"]).journal
        self._job = FIRST_JOB

    def environment(self, job: int) -> dict[str, str]:
        """Return the variables of a job."""
        return {**self.site.job_env, "SLURM_JOB_ID": str(job)}

    def next_job(self) -> int:
        """Return a job's id that was not used before."""
        self._job += 1
        return self._job

    def hook(self, name: str) -> list[str]:
        """Return the command line of a hook."""
        return [str(self.site.prefix / "libexec" / "warmstart" / name)]

    def run(self, name: str, job: int) -> None:
        """Run a hook."""
        timed(self.hook(name), self.environment(job))

    def warm(self) -> None:
        """Run a job through its hooks twice: the policy is compiled then, uses are noted, bundles fetched."""
        for _ in range(2):
            job = self.next_job()
            self.run("prolog", job)
            self.run("epilog", job)

    def point(self, size: int, rounds: int = 3, *, flushes: bool = False) -> Point:
        """Return what a warm job's hooks cost: `rounds` jobs are timed, and the calls of one more are counted.

        With `flushes`, each epilog moves the events since the last one into the audit log; else maintenance does.
        """
        self.warm()
        costs: dict[str, list[Cost]] = {"prolog": [], "epilog": []}
        for is_counted in (*[False] * rounds, True):
            env = self.environment(self.next_job())
            self.flush()
            for name, found in costs.items():
                if flushes:
                    self.let_journals_age()
                log = self.site.base / f"strace.{name}"
                measure = partial(counted, store=self.store, log=log) if is_counted else timed
                found.append(measure(self.hook(name), env))
        return Point(size, *(_together(found) for found in costs.values()))

    def flush(self) -> None:
        """Move all journals into the audit log."""
        sink.flush(self._journal, str(self.log))

    def let_journals_age(self) -> None:
        """Make all journals so old that the next epilog moves them into the audit log."""
        for path in Path(self._journal).iterdir():
            os.utime(path, (0, 0))

    def harvested(self) -> None:
        """Let one job compile two functions, and publish them."""
        job = self.next_job()
        self.run("prolog", job)
        (run,) = (self.site.base / "workspace" / "n1").glob(f"{job}.*")
        uid, gid = int(self.site.job_env["SLURM_JOB_UID"]), int(self.site.job_env["SLURM_JOB_GID"])
        write_as(uid, gid, run / "cache" / "numba", numba_entries(1, 2))
        self.run("epilog", job)


@contextmanager
def a_node() -> Iterator[Node]:
    """Yield a node with one published image and one bundle."""
    with bench_site(FILES) as site:
        installation.write_policy(site.prefix, POLICY.format(base=site.base, image=IMAGE))
        node = Node(site)
        try:
            node.harvested()
            yield node
        finally:
            unmount_below(site.base)


def images(sizes: Sequence[int]) -> Iterator[Point]:
    """Measure beside ever more images, each with its metadata, tag and use mark."""
    with a_node() as node:
        top = node.store / "images"
        there = 1
        for size in sizes:
            for number in range(there, size):
                name = layout.image_name(f"sha256:{number:064x}", KIND)
                key = layout.key_of(parse(f"reg.example.com/team/other:{number}").canonical())
                (top / "used" / name).mkdir(parents=True)
                (top / "used" / name / "n1").touch()
                (top / f"{name}.sqsh").touch()
                (top / f"{name}.json").write_text("{}")
                (top / "tags" / f"{key}.json").write_text(
                    json.dumps({"digest": f"sha256:{number:064x}", "resolved": 0})
                )
            there = size
            yield node.point(size)


def bundles(sizes: Sequence[int]) -> Iterator[Point]:
    """Measure beside ever more bundles in the job's own namespace, each with an entry that the others lack."""
    with a_node() as node:
        (known,) = node.store.glob("artifacts/*/*/*/*Z-*.json")
        first = manifest.decode(known.stem, known.read_bytes())
        where = Namespace(str(node.store), first.scope, first.profile, first.namespace)
        there = 1
        with StoreClient(node.site.owner, str(node.store), "growth") as client:
            for size in sizes:
                for number in range(there, size):
                    fd, entries = packed(node.site.base, number + 10)
                    client.publish(where, fd, Draft(first.producer, first.facts, entries), after(600))
                    os.close(fd)
                there = size
                yield node.point(size)


def packed(base: Path, number: int) -> tuple[int, Entries]:
    """Pack an entry of Numba's into a bundle. Return its descriptor, and what its manifest says of it."""
    stage = base / f"stage{number}"
    ((entry, files),) = numba_entries(number).items()
    for path, data in files.items():
        (stage / path).parent.mkdir(parents=True, exist_ok=True)
        (stage / path).write_bytes(data)
        os.utime(stage / path, ns=(MTIME_NS, MTIME_NS))
    fd = pack(str(stage), f"{stage}.sqsh", after(600))
    return fd, {entry: {path: File(len(d), hashlib.sha256(d).hexdigest(), MTIME_NS) for path, d in files.items()}}


def jobs(sizes: Sequence[int]) -> Iterator[Point]:
    """Measure one job beside ever more others between their prologs and epilogs on the same node."""
    with a_node() as node:
        others: list[int] = []
        for size in sizes:
            while len(others) < size - 1:
                others.append(node.next_job())
                node.run("prolog", others[-1])
            yield node.point(size)
        for other in others:
            node.run("epilog", other)


def audit(sizes: Sequence[int]) -> Iterator[Point]:
    """Measure with an ever larger audit log, in MiB. Each epilog adds to it."""
    with a_node() as node:
        node.flush()
        for size in sizes:
            fill(node.log, size << 20)
            yield node.point(size, flushes=True)


def fill(log: Path, size: int) -> None:
    """Append lines of a week of a cluster to an audit log until it has `size` bytes."""
    piece = log.with_name("piece")
    write_log(piece, 5000)
    data = piece.read_bytes()
    piece.unlink()
    with log.open("ab") as file:
        while file.tell() < size:
            file.write(data)
        os.fsync(file.fileno())  # else the hooks' own writes wait for these


def _together(found: Sequence[Cost]) -> Cost:
    timed_ones, counted_one = found[:-1], found[-1]
    return counted_one._replace(rss_mib=max(one.rss_mib for one in timed_ones), ms=min(one.ms for one in timed_ones))
