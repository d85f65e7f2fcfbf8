"""A stand-in for a container of a privileged pod: its /dev is a copy that was made when it started."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from warmstart.host import linux
from warmstart.host.deadline import after
from warmstart.host.identity import ROOT
from warmstart.host.namespaces import enter_new
from warmstart.host.worker import Worker

_SECONDS = 60.0
_NODES = ("null", "zero", "random", "urandom", "fuse", "loop-control")  # no loop device was there at its start
_Answer = TypeVar("_Answer")


def in_pod(act: Callable[..., _Answer], *given: str) -> _Answer:
    """Call a module's function as root in a process with a mount namespace and a /dev of its own."""
    return Worker(ROOT, "a pod").run(after(_SECONDS), act, *given)


def enter_pod(*missing: str) -> None:
    """Give this process, which does nothing else, the mount namespace and the /dev of a pod; nodes may be missing."""
    enter_new()
    devices = {
        name: os.stat(f"/dev/{name}") for name in _NODES if name not in missing and os.path.exists(f"/dev/{name}")
    }
    linux.mount("warmstart-tests", "/dev", "tmpfs", linux.MS_NOSUID, "mode=0755")
    for name, status in devices.items():
        os.mknod(f"/dev/{name}", status.st_mode, status.st_rdev)
    Path("/dev/shm").mkdir(mode=0o1777)
