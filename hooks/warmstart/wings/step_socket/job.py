"""Whose job a process is in, what a job's step daemon started belongs to that job; and what that process sees."""

from __future__ import annotations

import os
import re
import select
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

from warmstart.slurm.commands import job_of_daemon

MOST_PARENTS = 64


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


@contextmanager
def other_namespaces(pid: int, job_id: int) -> Iterator[list[int]]:
    """Open for a `with` the mount namespaces of a step's process and of its step daemon that are not the caller's.

    Raises `OSError`: the process has gone, is in no step of that job any more, or has another user namespace.
    """
    with ExitStack() as opened:
        guards = [_opened(opened, os.pidfd_open(pid))]
        daemon = daemon_of(pid)
        if daemon is None or daemon.job_id != job_id:
            raise ProcessLookupError(f"process {pid} is in no step of job {job_id}")
        guards.append(_opened(opened, os.pidfd_open(daemon.pid)))
        if not os.path.samestat(os.stat(f"/proc/{pid}/ns/user"), os.stat("/proc/self/ns/user")):
            raise PermissionError(f"process {pid} has a user namespace of its own")
        found = {os.stat("/proc/self/ns/mnt").st_ino: -1}
        for one in (daemon.pid, pid):
            fd = _opened(opened, os.open(f"/proc/{one}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC))
            found.setdefault(os.fstat(fd).st_ino, fd)
        if select.select(guards, [], [], 0)[0]:  # readable once it has ended: then another may have its pid
            raise ProcessLookupError(f"process {pid} has ended")
        yield [fd for fd in found.values() if fd >= 0]


def _opened(stack: ExitStack, fd: int) -> int:
    stack.callback(os.close, fd)
    return fd


def _parent(process: str) -> int:
    with open(f"{process}/status", "rb") as file:
        match = re.search(rb"^PPid:\t([1-9]\d*)$", file.read(), re.MULTILINE)
    if match is None:
        raise ValueError(f"{process} has no parent")
    return int(match[1])
