"""Real tools that compile while they are harvested again and again: what was taken then, and at the end, is right.

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
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lib.live_jobs import LiveJob
from tests.lib.requirements import need_module
from tests.lib.runs import changed
from warmstart.profiles import registry
from warmstart.run.state import Seeded

JOBS = Path(__file__).parents[1] / "tools" / "jobs"
# What each compiles of its own, and what that refers to; numba's second program writes anew what the first one made.
TOOLS = {
    "numba": ("numba", ("numba", "numba array", "numba_kinds two_types kernel_and_wrapper")),
    "triton": ("triton", ("triton", "triton hip")),
    "jax": ("jax", ("jax",)),
    "inductor": ("torch", ("inductor",)),
}
SETTLED_S = 0.1  # far less than a site has: what is not complete is to be seen, if it can be


@pytest.fixture(params=TOOLS)
def tool(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    need_module(TOOLS[name][0])
    return name


@pytest.fixture
def jobs(tmp_path: Path, tool: str) -> Iterator[tuple[LiveJob, LiveJob]]:
    """Give a job that is harvested all the time, and one that is harvested at its end alone."""
    both = LiveJob(tmp_path / "live"), LiveJob(tmp_path / "end")
    for job in both:
        seeded = {name: Seeded("ns") for name in (tool, "triton")}
        job.context = job.context._replace(run=changed(job.context.run, seeded=seeded))
    yield both
    for job in both:
        job.close()


def started(job: LiveJob, tool: str, program: str) -> subprocess.Popen[bytes]:
    cache = job.cache.parent
    environment = {"PATH": os.defpath, "HOME": str(job.root), "TMPDIR": str(job.root)}
    for name in (tool, "triton"):
        environment |= registry.get(name).environment(str(cache), str)
    name, *arguments = program.split()
    argv = [sys.executable, str(JOBS / f"{name}_job.py"), *arguments]
    return subprocess.Popen(argv, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.mark.sweep
def test_what_is_taken_under_load_is_what_the_end_brings(jobs: tuple[LiveJob, LiveJob], tool: str) -> None:
    live, end = jobs
    rounds, early = 0, 0
    for program in TOOLS[tool][1]:
        with started(live, tool, program) as process:
            while process.poll() is None:
                live.look(time.time_ns() - int(SETTLED_S * 1e9))
                rounds += 1
                early = max(early, sum(len(live.contents(name)) for name in live.context.run.own.seeded))
    shutil.rmtree(end.cache.parent)
    shutil.copytree(live.cache.parent, end.cache.parent)
    live.look()
    taken = {name: live.contents(name) for name in live.context.run.own.seeded}
    for job in jobs:
        assert job.end().degraded == []
    for name in live.context.run.own.seeded:
        assert live.contents(name) == end.contents(name)
        for files in taken[name].values():
            for path, digest in files.items():
                assert hashlib.sha256((live.cache.parent / name / path).read_bytes()).hexdigest() == digest
    assert taken[tool] == live.contents(tool)
    assert rounds > 1
    print(f"{tool}: {rounds} rounds, {early} entries before the end, {len(taken[tool])} at it")  # noqa: T201
