"""An flock(2) that is waited for until a deadline, and released with its descriptor. On a node's own disk only."""

from __future__ import annotations

import fcntl
import time

from warmstart.host.deadline import Deadline


def take(fd: int, deadline: Deadline, pause_s: float) -> bool:
    """Lock an open file or directory for us alone, looking every `pause_s` seconds; False at the deadline."""
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if deadline.expired():
                return False
            time.sleep(pause_s)
        else:
            return True
