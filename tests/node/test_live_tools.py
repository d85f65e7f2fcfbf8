"""Real tools that compile while they are harvested again and again: all is there before their end, and right after.

Two stores: one is harvested all the time, and at the end; the other one at the end alone. Both have the same then, byte
for byte. The tests need no cluster and no GPU. Without a tool its tests fail in CI (CI=true) and are skipped elsewhere.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.lib.requirements import need_module
from tests.lib.runs import a_context, changed
from warmstart.attempts import live
from warmstart.caches.store import bundles, generations
from warmstart.caches.store.layout import Namespace
from warmstart.host.deadline import after
from warmstart.profiles import registry
from warmstart.run.state import Seeded
from warmstart.steps import harvest
from warmstart.steps.contract import Context
from warmstart.steps.harvest import Harvested, Options

JOBS = Path(__file__).parents[1] / "tools" / "jobs"
# What each compiles of its own, and what that refers to; numba's second program writes anew what the first one made.
TOOLS = {
    "numba": ("numba", ("numba", "numba array", "numba_kinds two_types kernel_and_wrapper")),
    "triton": ("triton", ("triton", "triton hip")),
    "jax": ("jax", ("jax",)),
    "inductor": ("torch", ("inductor",)),
}
SCOPE = "user-64201-ws-alice"
SETTLED_S = 0.1  # far less than a site has: what is not complete is to be seen, if it can be


class LiveJob:
    """A run beside a store, as of a cold job that runs; whoever runs the tests harvests it."""

    def __init__(self, root: Path, tool: str) -> None:
        (root / "store").mkdir(parents=True)
        context = a_context(root)
        self.root, self.cache = root, Path(context.run.directory, "cache")
        self.cache.mkdir(parents=True)
        self.where = Namespace(context.store.path, SCOPE, tool, "ns")
        self.names = {tool, "triton"}
        run = changed(context.run, publish_scope=SCOPE, seeded={name: Seeded("ns") for name in self.names}, live=True)
        self.context = context._replace(run=run)

    def look(self, settled_ns: int) -> None:
        """Harvest it while it runs, what has not changed since, as the background does."""
        here = self._now()
        harvest.harvest(here._replace(run=live.chosen(here.policy, here.run)), settled_ns)

    def end(self) -> Harvested:
        """Harvest it as its epilog does once it was harvested while it ran."""
        here = self._now()
        return harvest.run(here._replace(run=here.run._replace(fresh=True)), Options(30))

    def _now(self) -> Context:
        return self.context._replace(deadline=after(60))

    def contents(self, profile: str) -> dict[str, dict[str, str]]:
        """Return what the next job is given of a profile: entry → path → SHA-256."""
        where, found = self.where._replace(profile=profile), dict[str, dict[str, str]]()
        listing = generations.read(where)
        for row, names in zip(listing.rows, listing.names, strict=True):
            entries = bundles.entries(where, row.sha256)
            found |= {entry: {path: file.sha256 for path, file in entries[entry].items()} for entry in names}
        return found


@pytest.fixture(params=TOOLS)
def tool(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    need_module(TOOLS[name][0])
    return name


@pytest.fixture
def jobs(tmp_path: Path, tool: str) -> tuple[LiveJob, LiveJob]:
    """Give a job that is harvested all the time, and one that is harvested at its end alone."""
    return LiveJob(tmp_path / "live", tool), LiveJob(tmp_path / "end", tool)


def started(job: LiveJob, program: str) -> subprocess.Popen[bytes]:
    environment = {"PATH": os.defpath, "HOME": str(job.root), "TMPDIR": str(job.root)}
    for name in job.names:
        environment |= registry.get(name).environment(str(job.cache), str)
    name, *arguments = program.split()
    argv = [sys.executable, str(JOBS / f"{name}_job.py"), *arguments]
    return subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.mark.sweep
def test_what_is_taken_under_load_is_what_the_end_brings(jobs: tuple[LiveJob, LiveJob], tool: str) -> None:
    running, end = jobs
    rounds, early = 0, 0
    for program in TOOLS[tool][1]:
        with started(running, program) as process:
            while process.poll() is None:
                running.look(time.time_ns() - int(SETTLED_S * 1e9))
                rounds += 1
                early = max(early, sum(len(running.contents(name)) for name in running.names))
    shutil.rmtree(end.cache)
    shutil.copytree(running.cache, end.cache)
    time.sleep(SETTLED_S)
    running.look(time.time_ns() - int(SETTLED_S * 1e9 / 2))
    taken = {name: running.contents(name) for name in running.names}
    for job in jobs:
        assert job.end().degraded == []
    for name in running.names:
        there = running.contents(name)
        assert there == end.contents(name)
        for files in there.values():
            for path, digest in files.items():
                assert hashlib.sha256((running.cache / name / path).read_bytes()).hexdigest() == digest
    assert taken[tool].keys() == running.contents(tool).keys()
    if tool != "numba":  # whose programs write anew what was taken: the end brings that
        assert taken == {name: running.contents(name) for name in running.names}
    assert rounds > 1
    print(f"{tool}: {rounds} rounds, {early} entries before the end, {len(taken[tool])} at it")  # noqa: T201
