"""Debian 13's Slurm 24.11 (Python 3.13, squashfs-tools 4.6): the main job, the ways to the constant path, the doctor.

The tests named here run there as they are, in a root file system of that release (tests/newer), against clusters of its
daemons. Making it needs the network once; `make setup-tests` does it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.requirements import unavailable

NEWER = Path(__file__).resolve().parents[1] / "newer"
TESTS = [
    "test_constant_path.py::test_the_table_of_the_docs",
    "test_constant_path.py::test_without_the_plugin_a_cache_is_warm_elsewhere",
    "test_constant_path.py::test_a_link_in_a_shared_tmp_is_never_made_nor_followed[nothing]",
    "test_doctor.py::test_a_real_site",
]


@pytest.fixture(scope="module")
def root(capable_host: None) -> str:
    """Return the root file system. If it is not available, fail in CI and skip elsewhere."""
    done = subprocess.run([NEWER / "build", sys.prefix], capture_output=True, text=True, check=False, timeout=600)
    if done.returncode != 0:
        unavailable(f"no Slurm 24.11: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    return done.stdout.strip()


def test_with_slurm_24_11(root: str) -> None:
    """Each test passes and none is skipped."""
    pytest_there = [".venv/bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    argv = [str(NEWER / "enter"), root, *pytest_there, *(f"tests/integration/{test}" for test in TESTS)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
    assert f"{len(TESTS)} passed" in done.stdout
