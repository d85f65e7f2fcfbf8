"""A tool's own lock while its file is copied: `<file>.lock`, BSD flock(2), shared, never made and never unlinked.

It is the job's file, and any process of the job may hold it for ever, so it is a courtesy with a short deadline:
whoever holds it then is at work on the file, which is left out. It is opened like every other file of the tree: no
link, no FIFO, no other mount, no other uid (threats, row 16).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from warmstart.host import files
from warmstart.host.deadline import Deadline
from warmstart.host.untrusted import GONE, Tree, TurnedAway

HELD = "its lock is held"
SECONDS = 2.0


@contextmanager
def tool_lock(tree: Tree, path: str, deadline: Deadline) -> Iterator[None]:
    """Hold the lock file at `path` shared; "" or a file that is not there is no lock. `TurnedAway` where it is held."""
    fd = _opened(tree, path)
    try:
        if fd >= 0:
            _take(fd, deadline.within(SECONDS))
        yield
    finally:
        if fd >= 0:
            os.close(fd)


def _opened(tree: Tree, path: str) -> int:
    try:
        return tree.open_file(path) if path else -1
    except TurnedAway as turned:
        if turned.reason != GONE:
            raise
        return -1


def _take(fd: int, deadline: Deadline) -> None:
    try:
        taken = files.take(fd, deadline, shared=True)
    except OSError as error:  # a file system without locks: the tool has none either
        raise TurnedAway(HELD) from error
    if not taken:
        raise TurnedAway(HELD)
