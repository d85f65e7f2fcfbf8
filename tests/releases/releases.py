"""Run tests with another release of Slurm, in the root file system of a Debian suite, and tell what became of each."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as ET

HERE = Path(__file__).resolve().parent
RESULTS = Path(__file__).resolve().parents[2] / "build" / "releases"
SUITES = ("bookworm", "trixie", "sid")  # of Debian; tests/releases/build has their releases
# Tests of tools alone run once, with the host's Slurm, as do those that only add size.
WHOLE = ("-m", "slurm and not tool and not sweep", "tests/slurm")
_REPORTS = Path("/run/warmstart-tests")  # the same directory inside and outside (tests/releases/enter)
_VERSIONS = "slurmd -V; .venv/bin/python -V; mksquashfs -version | head -n 1"
_PROCESSES = 3  # of one CPU: most tests wait for Slurm
_SECONDS = 3000

# What a release cannot do, and why. These must not pass there, or they are no exceptions.
EXCEPTIONS: dict[str, dict[str, str]] = {
    "bookworm": {
        "tests/slurm/test_constant_path.py::test_without_the_plugin_a_cache_is_warm_elsewhere": (
            "there it compiles with torch, and is run with the host's 22.05"
        ),
    },
    "trixie": {},
    "sid": {},
}


class Run(NamedTuple):
    """One run of pytest in a root file system."""

    outcomes: dict[str, str]  # FILE::NAME[PARAMETERS]: passed, failed or skipped
    seconds: float
    output: str  # the end of pytest's

    def of(self, outcome: str) -> list[str]:
        """Return the tests with an outcome."""
        return sorted(test for test, seen in self.outcomes.items() if seen == outcome)


class RootFailed(Exception):
    """A root file system cannot be made; its text says why."""


def build(suite: str, *packages: str) -> str:
    """Return the path of the suite's root file system, with further `packages`, which is made if it is not there.

    Raises `RootFailed`.
    """
    argv = [str(HERE / "build"), sys.prefix, suite, *([",".join(packages)] if packages else [])]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RootFailed(f"no root file system of {suite}: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    return done.stdout.strip()


def versions(root: str) -> dict[str, str]:
    """Return the versions of what the suite brings."""
    done = subprocess.run(
        [str(HERE / "enter"), root, "sh", "-c", _VERSIONS], capture_output=True, text=True, check=True
    )
    slurm, python, squashfs = done.stdout.splitlines()
    return {"Slurm": slurm.split()[-1], "Python": python.split()[-1], "squashfs-tools": squashfs.split()[2]}


def run(root: str, suite: str, tests: Sequence[str]) -> Run:
    """Run pytest with the arguments `tests`."""
    report = _REPORTS / f"release-{suite}.xml"
    argv = [".venv/bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(_PROCESSES)]
    started = time.monotonic()
    done = subprocess.run(
        [str(HERE / "enter"), root, *argv, f"--junitxml={report}", *tests],
        capture_output=True, text=True, check=False, timeout=_SECONDS,
    )  # fmt: skip
    try:
        seen = outcomes(report.read_text())
    finally:
        report.unlink(missing_ok=True)
    return Run(seen, time.monotonic() - started, done.stdout[-8000:] + done.stderr[-2000:])


def outcomes(report: str) -> dict[str, str]:
    """Return what became of each test, from pytest's JUnit file."""
    seen: dict[str, str] = {}
    for case in ET.fromstring(report).iter("testcase"):
        bad = {child.tag for child in case} & {"failure", "error", "skipped"}
        test = f"{case.get('classname', '').replace('.', '/')}.py::{case.get('name', '')}"
        outcome = "skipped" if bad == {"skipped"} else "failed" if bad else "passed"
        # A test whose teardown fails has two entries.
        seen[test] = "failed" if "failed" in (outcome, seen.get(test)) else outcome
    return seen
