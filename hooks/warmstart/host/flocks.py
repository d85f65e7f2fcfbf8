"""BSD file locks, flock(2), on an open file or directory; a lock ends with its last descriptor.

They exclude processes of one host, and of others only where the file system says so: locks of the shared store are
`store.locks`'s. A file system without locks raises `OSError`. Hot path.
"""

from __future__ import annotations

import fcntl
import time

from warmstart.host.deadline import Deadline

PAUSE_S = 0.02


def try_take(fd: int, *, shared: bool = False) -> bool:
    """Lock `fd`, alone or shared with others who do; return False at once where somebody holds it."""
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def take(fd: int, deadline: Deadline, pause_s: float = PAUSE_S, *, shared: bool = False) -> bool:
    """Wait for the lock, trying every `pause_s` seconds; return False where somebody still holds it at the deadline."""
    while not try_take(fd, shared=shared):
        if deadline.expired():
            return False
        time.sleep(pause_s)
    return True


def release(fd: int) -> None:
    """Unlock a descriptor that stays open."""
    fcntl.flock(fd, fcntl.LOCK_UN)
