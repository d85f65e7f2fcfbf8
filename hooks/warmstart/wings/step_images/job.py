"""Whose job a process is in, what a job's step daemon started belongs to that job; and what that process sees."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import select
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

from warmstart.host import namespaces
from warmstart.slurm.commands import job_of_daemon

MOST_PARENTS = 64
READ = os.O_RDONLY | os.O_CLOEXEC
_NS_GET_NSTYPE = 0xB703  # ioctl_ns(2)


class Daemon(NamedTuple):
    """A step daemon."""

    pid: int
    job_id: int


def job_of(pid: int, proc: str = "/proc") -> int | None:
    """Return the id of the job whose step daemon started a process or a parent of it; None if none did."""
    daemon = daemon_of(pid, proc)
    return daemon.job_id if daemon else None


def daemon_of(pid: int, proc: str = "/proc") -> Daemon | None:
    """Return the step daemon that started a process or a parent of it; None if none did."""
    with suppress(OSError, ValueError):
        for _ in range(MOST_PARENTS):
            if (job_id := job_of_daemon(f"{proc}/{pid}")) is not None:
                return Daemon(pid, job_id)
            pid = _parent(f"{proc}/{pid}")
    return None


def claimed_node(pid: int) -> str:
    """Return the node that a step's process says it is on, "" if none: a host may have several of its job's."""
    with suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        match = re.search(rb"(?:^|\0)SLURMD_NODENAME=([^\0]*)", file.read())
        return os.fsdecode(match[1]) if match else ""
    return ""


@contextmanager
def other_namespaces(pid: int, job_id: int) -> Iterator[list[int]]:
    """Open for a `with` the mount namespaces of a step's process and of its job's later steps, but the caller's own.

    Later steps join the one that Slurm has made for the job (job_container/tmpfs): it is mounted below the job's id,
    and no process may be in it, because the SPANK plugin gives each task a copy.

    Raises `OSError`: the process has gone, is in no step of that job any more, or has another user namespace.
    """
    with ExitStack() as opened:
        ours = _opened(opened, os.open("/proc/self/ns/mnt", READ))
        guards = [_opened(opened, os.pidfd_open(pid))]
        daemon = daemon_of(pid)
        if daemon is None or daemon.job_id != job_id:
            raise ProcessLookupError(errno.ESRCH, f"process {pid} is in no step of job {job_id}")
        guards.append(_opened(opened, os.pidfd_open(daemon.pid)))
        own = (mount.point for mount in namespaces.mounts() if mount.kind == "nsfs")
        paths = [point for point in own if str(job_id) in point.split("/")]
        found = {os.fstat(ours).st_ino: ours}
        for path in (*(f"/proc/{one}/ns/mnt" for one in (pid, daemon.pid)), *paths):
            fd = _opened(opened, os.open(path, READ))
            if fcntl.ioctl(fd, _NS_GET_NSTYPE) == namespaces.CLONE_NEWNS:
                found.setdefault(os.fstat(fd).st_ino, fd)
        if not os.path.samestat(os.stat(f"/proc/{pid}/ns/user"), os.stat("/proc/self/ns/user")):
            raise PermissionError(errno.EPERM, f"process {pid} has a user namespace of its own")
        if select.select(guards, [], [], 0)[0]:  # readable once it has ended: then another may have its pid
            raise ProcessLookupError(errno.ESRCH, f"process {pid} has ended")
        yield [fd for fd in found.values() if fd != ours]


def _opened(stack: ExitStack, fd: int) -> int:
    stack.callback(os.close, fd)
    return fd


def _parent(process: str) -> int:
    with open(f"{process}/status", "rb") as file:
        match = re.search(rb"^PPid:\t([1-9]\d*)$", file.read(), re.MULTILINE)
    if match is None:
        raise ValueError(f"{process} has no parent")
    return int(match[1])
