"""What the cluster needs of the host (all of it is in Debian 12), and the lock for changing it."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

LOCKS = Path("/run/warmstart-tests")

_PROGRAMS = {
    "/bin/busybox": "busybox-static",
    "/usr/bin/bindfs": "bindfs",
    "/usr/bin/docker-registry": "docker-registry",
    "/usr/bin/fusermount3": "fuse3",
    "/usr/bin/mksquashfs": "squashfs-tools",
    "/usr/bin/scontrol": "slurm-client",
    "/usr/bin/skopeo": "skopeo",
    "/usr/bin/umoci": "umoci",
    "/usr/sbin/munged": "munge",
    "/usr/sbin/slurmctld": "slurmctld",
    "/usr/sbin/slurmd": "slurmd",
}


def missing() -> list[str]:
    """Return what is missing here: `root`, the FUSE device, or names of Debian packages."""
    wanting = [] if os.geteuid() == 0 else ["root"]
    if not Path("/dev/fuse").exists():
        wanting.append("/dev/fuse")
    return wanting + [package for program, package in _PROGRAMS.items() if not Path(program).exists()]


@contextmanager
def changing() -> Iterator[None]:
    """Hold the lock for changes to what clusters share: accounts, and the mode of /dev/fuse."""
    LOCKS.mkdir(mode=0o700, exist_ok=True)
    descriptor = open_lock("changes")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def reserved(name: str) -> bool:
    """Reserve `name` among the processes that run tests, until this one ends; False where another has it."""
    LOCKS.mkdir(mode=0o700, exist_ok=True)
    descriptor = open_lock(name)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return False
    return True


def open_lock(name: str) -> int:
    """Return a descriptor of a lock file below /run; closing it releases its lock."""
    return os.open(LOCKS / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
