"""Each release of Slurm passes the cases of the matrix; what was seen is kept for docs/slurm-releases.md."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from tests.matrix.cases import CASES, RESULTS, SUITES, Outcome
from tests.support.requirements import unavailable

NEWER = Path(__file__).resolve().parents[1] / "newer"
REPORTS = Path("/run/warmstart-tests")  # the same directory inside and outside (tests/newer/enter)
VERSIONS = "slurmd -V; .venv/bin/python -V; mksquashfs -version | head -n 1"
SECONDS = 1500

pytestmark = pytest.mark.sweep


def in_root(root: str, *argv: str, seconds: float = SECONDS) -> subprocess.CompletedProcess[str]:
    """Run a command in a root file system of tests/newer."""
    return subprocess.run(
        [str(NEWER / "enter"), root, *argv], capture_output=True, text=True, check=False, timeout=seconds
    )


def outcomes(report: str) -> dict[str, Outcome]:
    """Return what became of each case, from pytest's JUnit file."""
    seen: dict[str, list[str]] = {}
    for case in ET.fromstring(report).iter("testcase"):
        bad = {child.tag for child in case} & {"failure", "error", "skipped"}
        module = case.get("classname", "").rpartition(".")[2]
        name = f"{module}.py::{case.get('name', '')}"
        word = "skipped" if bad == {"skipped"} else "failed" if bad else "passed"
        seen.setdefault(name, []).append(word)
        seen.setdefault(name.partition("[")[0], []).append(word)
    return {
        label: Outcome(*(sum(seen.get(test, []).count(word) for test in tests) for word in Outcome._fields))
        for label, tests in CASES.items()
    }


@pytest.mark.parametrize("suite", SUITES)
def test_a_release_passes_every_case(capable_host: None, suite: str) -> None:
    """And nothing is skipped."""
    built = subprocess.run([NEWER / "build", sys.prefix, suite], capture_output=True, text=True, check=False)
    if built.returncode != 0:
        unavailable(f"no root file system of {suite}: {(built.stderr.strip().splitlines() or ['?'])[-1]}")
    root, report = built.stdout.strip(), REPORTS / f"release-{suite}.xml"
    slurm, python, squashfs = in_root(root, "sh", "-c", VERSIONS).stdout.splitlines()
    tests = [f"tests/integration/{test}" for case in CASES.values() for test in case]
    pytest_there = [".venv/bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    done = in_root(root, *pytest_there, *tests)
    seen = outcomes(report.read_text())
    report.unlink()
    versions = {"Slurm": slurm.split()[-1], "Python": python.split()[-1], "squashfs-tools": squashfs.split()[2]}
    RESULTS.mkdir(parents=True, exist_ok=True)
    found = {"versions": versions, "cases": {label: outcome.word for label, outcome in seen.items()}}
    (RESULTS / f"{suite}.json").write_text(json.dumps(found))
    assert {outcome.word for outcome in seen.values()} == {"passed"}, done.stdout[-8000:] + done.stderr[-2000:]
