"""Root file systems of Debian suites, each with its release of Slurm (tests/releases/build), and pytest in them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.lib.requirements import unavailable

HERE = Path(__file__).resolve().parent
_SECONDS = 3000


def root_of(suite: str, *packages: str) -> str:
    """Return the path of a suite's root, with further Debian packages. If it cannot be had, fail in CI, else skip."""
    argv = [str(HERE / "build"), sys.prefix, suite, *([",".join(packages)] if packages else [])]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        unavailable(f"no root file system of {suite}: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
    return done.stdout.strip()


def passes(root: str, *tests: str) -> None:
    """Run pytest with these arguments in a root: all of them pass, and none is skipped."""
    argv = [str(HERE / "enter"), root, ".venv/bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, timeout=_SECONDS, env={**os.environ, "CI": "true"}
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
