"""The released source of pyslurm has the API that warmstart's look-up uses.

The one release on package indexes is for Slurm 25.11 and can't be built against Debian 12's Slurm, so the names and
types come from its source archive, fetched as pip fetches it. Nothing of it is kept (it is GPL) and nothing is run.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tests.lib.requirements import unavailable
from tests.lib.wings.specs.fake_pyslurm import API, VERSION


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the files of the source archive by path. A package index must be within reach."""
    directory = tmp_path_factory.mktemp("pyslurm")
    options = ["--no-deps", "--no-binary=:all:", "--no-build-isolation", "--quiet", f"--dest={directory}"]
    argv = [sys.executable, "-m", "pip", "download", *options, f"pyslurm=={VERSION}"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    archives = list(Path(directory).glob("*.tar.gz"))
    if not archives:
        unavailable(f"pip can't fetch pyslurm's source: {done.stderr.strip()[-200:]}")
    with tarfile.open(archives[0]) as archive:
        members = [member for member in archive.getmembers() if member.isfile()]
        return {
            member.name.partition("/")[2]: content.read().decode("utf-8", "replace")
            for member in members
            if (content := archive.extractfile(member))
        }


@pytest.mark.parametrize(("path", "line"), [(path, line) for path, lines in API.items() for line in lines])
def test_the_released_source_has_what_we_use(source: dict[str, str], path: str, line: str) -> None:
    """Job.load takes an id and returns the first record, `qos` is a str or None, RPCError is an exception."""
    assert re.search(line, source[path], re.MULTILINE), f"{path} has no {line!r}"
