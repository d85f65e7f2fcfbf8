"""Root file systems to build packages in and to install them in, and commands in them."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.releases.roots import root_of

HERE = Path(__file__).resolve().parent
RELEASES = HERE.parent
SHARED = Path("/run/warmstart-tests")  # the same directory inside and outside (tests/releases/enter)
SECONDS = 2400
ENVIRONMENT = {**os.environ, "SOURCE_DATE_EPOCH": "1750000000", "DEBEMAIL": "packages@warmstart.dev"}
# Of a node and of the tests' cluster, beside what the package depends on.
NODE = [
    "slurmctld", "slurmd", "slurm-client", "munge", "docker-registry", "busybox-static", "bindfs", "fuse3", "procps",
    "skopeo", "umoci", "python3",
]  # fmt: skip


def run(*argv: str | Path, cwd: Path | None = None) -> str:
    """Run a command that succeeds; return its standard output."""
    words = [str(word) for word in argv]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, timeout=SECONDS, env=ENVIRONMENT, cwd=cwd or HERE.parents[2]
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    return done.stdout


class Suite(NamedTuple):
    """The root file systems of a Debian release: one to build in, and a bare one."""

    newer: str
    bare: str

    def build(self, *argv: str | Path) -> str:
        return run(RELEASES / "enter", self.newer, *argv)

    @contextmanager
    def fresh(self) -> Iterator[Fresh]:
        """Yield a bare root file system, and remove what was written to it."""
        scratch = tempfile.mkdtemp(prefix="warmstart-fresh-", dir="/var/tmp")
        try:
            yield Fresh(self, scratch)
        finally:
            subprocess.run(["rm", "-rf", "--one-file-system", scratch], check=True)


class Fresh(NamedTuple):
    """A bare root file system, without a network, in which things are installed."""

    suite: Suite
    scratch: str

    def run(self, *argv: str | Path) -> str:
        return run(HERE / "fresh", self.scratch, self.suite.bare, self.suite.newer, *argv)

    def apt(self, *packages: str | Path) -> None:
        """Install packages: files, or what lies in apt's cache."""
        self.run("apt-get", "-qq", "install", "-y", "--no-install-recommends", *packages)

    def pytest(self, name: str, packages: Path) -> str:
        """Run a file, named from this folder, there; return what pytest says of a run in which nothing was skipped."""
        pytest = [".venv/bin/python", "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
        said = self.run("env", f"WARMSTART_PACKAGES={packages}", *pytest, f"tests/releases/packages/{name}")
        assert "skipped" not in said
        return said


def suite(name: str) -> Suite:
    return Suite(root_of(name), run(HERE / "bare", name).strip())
