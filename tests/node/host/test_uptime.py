"""How long a machine is up, or a container of it: since its process 1 began."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import warmstart.host

HOOKS = Path(warmstart.host.__file__).parents[2]
CONTAINER = ["/usr/bin/unshare", "--pid", "--fork", "--mount-proc"]
SAY = [sys.executable, "-c", "from warmstart.host import deadline; print(deadline.uptime_s())"]


def told(*inside: str) -> float:
    done = subprocess.run([*inside, *SAY], env={"PYTHONPATH": str(HOOKS)}, capture_output=True, text=True, check=True)
    return float(done.stdout)


def test_a_container_is_younger_than_its_host() -> None:
    assert told(*CONTAINER) < 60 < told()
