"""What a producer tells its waiters while it works: for the length of an import, how much of it is on the disk.

A process of its own looks every few seconds: the importer's programs say nothing that could be relied on. It ends
with the hook, however that ends.
"""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from warmstart.host.files import DIRECTORY

EVERY_S = 2.0
DEEPEST = 3  # layers and results lie above; the unpacked tree goes on below
MOST = 2000  # entries looked at
SIGKILL = 9
BLOCK = 512  # bytes in st_blocks


@contextmanager
def told(directory: int, tell: Callable[[int], None]) -> Iterator[None]:
    """Call `tell` with the bytes below a directory every few seconds, in a forked process, during a `with`.

    `tell` runs in that process only; what it raises ends it and nothing else.
    """
    ended, ending = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(ending)
            while not select.select([ended], [], [], EVERY_S)[0]:
                tell(measure(directory))
        finally:
            os._exit(0)
    os.close(ended)
    try:
        yield
    finally:
        os.close(ending)
        _reap(pid)


def _reap(pid: int) -> None:
    """Let it finish what it says; one that hangs in the store is killed."""
    for _ in range(200):
        if os.waitpid(pid, os.WNOHANG)[0]:
            return
        select.select([], [], [], 0.01)
    os.kill(pid, SIGKILL)
    os.waitpid(pid, 0)


def measure(directory: int) -> int:
    """Return the bytes on disk of the files near the top of a directory; follows no links, opens no file."""
    with suppress(OSError):
        return _measure(directory, DEEPEST, [MOST])
    return 0


def _measure(directory: int, depth: int, left: list[int]) -> int:
    total = 0
    for name in os.listdir(directory):
        left[0] -= 1
        if left[0] < 0:
            break
        with suppress(OSError):
            status = os.stat(name, dir_fd=directory, follow_symlinks=False)
            total += status.st_blocks * BLOCK
            if depth > 1 and stat.S_ISDIR(status.st_mode):
                below = os.open(name, DIRECTORY, dir_fd=directory)
                try:
                    total += _measure(below, depth - 1, left)
                finally:
                    os.close(below)
    return total


def format_size(count: int) -> str:
    """Return bytes in words."""
    amount = float(count)
    for unit in ("B", "KiB", "MiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}"
        amount /= 1024
    return f"{amount:.1f} GiB"
