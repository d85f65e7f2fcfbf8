"""Real runs of Numba, and what harvest, store and seeding do to its cache between them, without a cluster.

`Published` is the store as far as Numba can tell: the first valid publisher of an entry wins, and a job is seeded with
whole entries.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tests.lib.loaded import loaded
from warmstart.host.files import opened_dir
from warmstart.profiles import naming, registry
from warmstart.profiles.judge import judge

if TYPE_CHECKING:
    from collections.abc import Iterator

JOB = Path(__file__).parents[1] / "tools" / "jobs" / "numba_kinds_job.py"


class Run(NamedTuple):
    """How a process ended, and what it printed."""

    status: int  # negative: the signal that ended it
    report: dict[str, Any]
    complaint: str  # the end of its stderr


class Runner(Protocol):
    """Runs the job to its end."""

    def __call__(self, cache: Path, *kinds: str, script: Path = JOB, **variables: str) -> Run:
        """Run it with its cache at `cache`."""


def environment_of(cache: Path, variables: dict[str, str]) -> dict[str, str]:
    """Return a job's environment: these variables and what it needs."""
    return {
        "PATH": os.defpath,
        "HOME": str(cache.parent),
        "NUMBA_CACHE_DIR": str(cache),
        "NUMBA_NUM_THREADS": "2",
        **variables,
    }


def start(cache: Path, *kinds: str, script: Path = JOB, **variables: str) -> subprocess.Popen[str]:
    """Start the job with its cache at `cache`."""
    command = [sys.executable, str(script), *kinds]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, env=environment_of(cache, variables), stdout=pipe, stderr=pipe, text=True)


def finish(process: subprocess.Popen[str]) -> Run:
    """Wait for a job."""
    output, complaint = process.communicate(timeout=300)
    return ended(process.returncode, output, complaint)


def ended(status: int, output: str, complaint: str) -> Run:
    """Return how a job ended."""
    return Run(status, json.loads(output.splitlines()[-1]) if status == 0 else {}, complaint[-2000:])


def run(cache: Path, *kinds: str, script: Path = JOB, **variables: str) -> Run:
    """Run the job to its end."""
    return finish(start(cache, *kinds, script=script, **variables))


@contextmanager
def numba_loaded() -> Iterator[Runner]:
    """Load Numba once; yield a `run` whose processes are forks of that one."""
    load = "import numba; numba.njit(lambda: None)()"  # with what the first function to compile needs
    with loaded(load, "numba.core.config.reload_config()") as run_script:

        def run(cache: Path, *kinds: str, script: Path = JOB, **variables: str) -> Run:
            done = run_script([str(script), *kinds], environment_of(cache, variables))
            return ended(done.returncode, done.stdout, done.stderr)

        yield run


def entries(cache: Path) -> dict[str, list[str]]:
    """Return the entries of a cache by the profile's own rule."""
    found: dict[str, list[str]] = {}
    for path in sorted(cache.rglob("*")):
        name = path.relative_to(cache).as_posix()
        entry = naming.entry_of(registry.get("numba"), name) if path.is_file() else None
        if entry:
            found.setdefault(entry, []).append(name)
    return found


def verdicts(cache: Path) -> dict[str, str | None]:
    """Judge all entries of a cache."""
    with opened_dir(str(cache)) as stage:
        return dict(judge("numba", stage, entries(cache)))


class Published:
    """What jobs have published so far: entry → name of a file → content."""

    def __init__(self) -> None:
        self.entries: dict[str, dict[str, bytes]] = {}

    def harvest(self, cache: Path) -> dict[str, str | None]:
        """Publish the valid entries of a cache that are new; return the verdicts."""
        found = verdicts(cache) if cache.is_dir() else {}
        for entry, names in entries(cache).items():
            if found[entry] is None and entry not in self.entries:
                self.entries[entry] = {name: (cache / name).read_bytes() for name in names}
        return found

    def seed(self, cache: Path) -> Path:
        """Make a new cache with all that was published."""
        shutil.rmtree(cache, ignore_errors=True)
        cache.mkdir()
        for files in self.entries.values():
            for name, content in files.items():
                (cache / name).parent.mkdir(exist_ok=True)
                (cache / name).write_bytes(content)
        return cache
