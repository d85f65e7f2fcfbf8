"""An import from an environment of many files: on a network file system, from its packed copy, and on the local disk.

GlusterFS with one brick in memory; each operation at the brick waits as long as a round trip, all of them at once
(`delay-gen`, GlusterFS' own). Hooks pack the environment and mount the copy, over the volume, whose client works on.
Cold: the file system is mounted anew, and the kernel has dropped its caches; again: at once after that.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from tests.lib import mounts, processes
from tests.lib.accounts import ALICE, Account, lookup
from tests.lib.bench_site import BenchSite, Command
from tests.lib.gluster import Gluster
from tests.lib.teardown import unmount
from tools.bench.clock import cpu_of_children, timed
from tools.bench.figures import Figure, Series

ROUND_TRIPS_MS = (0.2, 1.0)
VOLUME = "GlusterFS, {:g} ms"
COPY, LOCAL = "warmstart's copy", "local disk"
BRICK_SIZE = "3g"
PACKED_S = 900.0
LOOKED_UP = 200  # names
GOAL = 0.33
POLICY = """\
constant_path: spank
seed: {{fetch_budget: 60s}}
trees: {{prefixes: ["{shared}"]}}
rules:
  - {{name: everyone}}
"""


class Import(NamedTuple):
    """What is installed, and what a process does with it."""

    packages: tuple[str, ...]
    statement: str


TORCH = Import(("torch==2.13.0", "numba"), "import torch, numba")
NUMBA = Import(("numba",), "import numba")


def measured(site: BenchSite, what: Import, rounds: dict[int, int]) -> Iterator[Figure]:
    """Time imports by so many processes at once, each in so many rounds."""
    bench = _Bench(site, what)
    bench.install()
    with Gluster(site.base, bench.user, (1,), BRICK_SIZE) as bench.servers:
        bench.fill_and_pack()
        names = [*bench.places]
        yield _figure(f"a look-up in a tree of {bench.files:,} files", {name: bench.look_up(name) for name in names})
        for count, times in rounds.items():
            found: dict[str, dict[str, list[float]]] = {}
            for _ in range(times):
                for name in names:
                    for case, value in bench.run(name, count).items():
                        found.setdefault(case, {}).setdefault(name, []).append(value)
            who = f"{count} processes" if count > 1 else "one process"
            for case, values in found.items():
                yield _figure(f"{who}, {case}", values)
        yield from bench.operations()


def _figure(what: str, values: dict[str, list[float]]) -> Figure:
    ours, *peers = (Series(name, each) for name, each in values.items())
    if what.endswith("cold"):
        peers = [peer._replace(goal=None if peer.name == LOCAL else GOAL) for peer in peers]
    return Figure("trees", what, ours, peers)


class _Bench:
    """An environment that three file systems show at one path."""

    servers: Gluster

    def __init__(self, site: BenchSite, what: Import) -> None:
        self._site = site
        self._what = what
        self._shared = site.base / "shared"
        self._tree = self._shared / "env"
        self._local = site.base / "local"
        self._copy = Path()
        self._clients = 0
        self.user: Account = lookup(ALICE, site.base / "home" / ALICE)
        self.files = 0
        # The copy lies over the volume with the longest round trip, as it does on a node.
        volumes = {VOLUME.format(wait): partial(self._volume, wait) for wait in ROUND_TRIPS_MS}
        self.places: dict[str, Callable[[], AbstractContextManager[list[int]]]] = {
            COPY: self._packed,
            LOCAL: self._on_disk,
            **volumes,
        }

    # --- what is made once

    def install(self) -> None:
        """Install the environment on the local disk, at the path that it will have."""
        (self._site.base / "log").mkdir()
        self._local.mkdir()
        (self._local / "env").mkdir()
        self._shared.mkdir()
        with mounts.bound(self._local, self._shared):
            subprocess.run([sys.executable, "-m", "venv", self._tree], check=True)
            pip = [str(self._tree / "bin" / "pip"), "install", "--quiet", *self._what.packages]
            subprocess.run(pip, check=True, stderr=subprocess.DEVNULL)
            subprocess.run(["/bin/chown", "-R", f"{self.user.uid}:{self.user.gid}", self._tree], check=True)
            self.files = sum(len(names) for _, _, names in os.walk(self._tree))
        (self._shared / "env").mkdir()

    def fill_and_pack(self) -> None:
        """Copy the environment to the volume, and let hooks of jobs pack it from there."""
        self._site.write_policy(POLICY.format(shared=self._shared))
        with self._volume(0):
            self._as_user("/bin/cp", "-a", str(self._local / "env"), str(self._shared)).run()
            wanted = time.monotonic() + PACKED_S
            for job in range(1, sys.maxsize):
                hook = self._site.hook("prolog", job)
                comment = {"SLURM_JOB_COMMENT": f"warmstart: tree={self._tree}", "SLURM_JOB_RESTART_COUNT": "0"}
                hook._replace(env={**hook.env, **comment}).run()
                if copies := [*self._site.base.glob(f"workspace/{job}.*/mounted/tree/tree")]:
                    (self._copy,) = copies
                    return
                self._site.hook("epilog", job).run()
                if time.monotonic() > wanted:
                    raise RuntimeError("the environment was not packed")
                time.sleep(5)

    # --- where the environment lies

    @contextmanager
    def _volume(self, wait_ms: float) -> Iterator[list[int]]:
        """Mount the volume at the tree's path; yield the processes that serve it."""
        self.servers.set_delay(wait_ms)
        self._clients += 1
        client = self.servers.client(f"bench{self._clients}", self._shared, alone=False)
        try:
            yield [client.process.pid, self.servers.brick_pid(1)]
        finally:
            unmount(str(self._shared))
            processes.stop(client.process)

    @contextmanager
    def _packed(self) -> Iterator[list[int]]:
        with self._volume(ROUND_TRIPS_MS[-1]) as pids, mounts.bound(self._copy, self._tree):
            yield pids

    @contextmanager
    def _on_disk(self) -> Iterator[list[int]]:
        with mounts.bound(self._local, self._shared):
            yield []

    # --- what is measured

    def run(self, place: str, count: int) -> dict[str, float]:
        """Return the milliseconds of a cold import by so many processes, its CPU time, and those of the next."""
        with self.places[place]() as pids:
            _drop_caches()
            before = _cpu(pids)
            cold = timed(partial(self._import, count))
            cpu = _cpu(pids) - before
            return {"cold": cold, "again": timed(partial(self._import, count)), "cold, CPU time": cpu}

    def look_up(self, place: str) -> list[float]:
        """Return the milliseconds of a look-up, one after the other, of each of some names."""
        names = [path.relative_to(self._local) for path in (self._local / "env").rglob("*.py")]
        with self.places[place]():
            _drop_caches()
            return [timed(partial(os.lstat, self._shared / name)) for name in names[:: len(names) // LOOKED_UP]]

    def operations(self) -> Iterator[Figure]:
        """Count what one cold import asks of the brick."""
        found: dict[str, int] = {}
        for place in (COPY, VOLUME.format(ROUND_TRIPS_MS[0])):
            with self.places[place]():
                _drop_caches()
                self.servers.count()
                self._import(1)
                found[place] = sum(self.servers.count().values())
        copy, volume = found.values()
        what = "operations at the brick, one process, cold"
        yield Figure("trees", what, Series(COPY, [copy]), [Series("GlusterFS", [volume])], "calls")

    def _import(self, count: int) -> None:
        python = [str(self._tree / "bin" / "python"), "-c", self._what.statement]
        command = self._as_user(*python)
        started = [subprocess.Popen(command.argv, env=dict(command.env), cwd="/") for _ in range(count)]
        if any(ended := [process.wait() for process in started]):
            raise RuntimeError(f"{' '.join(python)} ended with {ended}")

    def _as_user(self, *argv: str) -> Command:
        become = ("/usr/bin/setpriv", f"--reuid={self.user.uid}", f"--regid={self.user.gid}", "--clear-groups")
        return Command([*become, *argv], {"PATH": "/usr/bin:/bin", "PYTHONDONTWRITEBYTECODE": "1"})


def _drop_caches() -> None:
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


def _cpu(pids: list[int]) -> float:
    """Return the CPU time of children that have ended, and of some processes, in milliseconds."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])  # proc(5): utime and stime
    return cpu_of_children() + ticks * 1000 / os.sysconf("SC_CLK_TCK")
