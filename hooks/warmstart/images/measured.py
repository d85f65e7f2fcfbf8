"""The caps of an import where no file system holds them: its directory is measured while its programs run.

For a user's own import, and for nodes without loop devices. Less than a file system of that size (sized.py): what is
written between two looks is over already.
"""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress

from warmstart.host.files import DIRECTORY
from warmstart.images.sized import Caps

EVERY_S = 1.0
PATIENCE = 4  # a look may cost one part in so many of the time
DEEPEST = 200  # directories; no image has so many in each other, and each costs a descriptor
STAT_BLOCK = 512  # bytes in st_blocks


class Exceeded(Exception):
    """More is there than the caps allow."""


class Watch:
    """Looks from time to time whether a directory has outgrown its caps."""

    def __init__(self, directory: int, caps: Caps) -> None:
        self._directory = directory
        self._caps = caps
        self._next = 0.0

    def __call__(self) -> None:
        """Raise `Exceeded`; does nothing while it is too early to look again."""
        if time.monotonic() >= self._next:
            self.look()

    def look(self) -> None:
        """Raise `Exceeded` if more is there now; follows no links, opens no files."""
        started = time.monotonic()
        _add(self._directory, self._caps, 1)
        ended = time.monotonic()
        self._next = ended + max(EVERY_S, PATIENCE * (ended - started))


def _add(directory: int, left: Caps, depth: int) -> Caps:
    """Return what is left of the caps after everything below a directory; what goes away meanwhile is not there."""
    if depth > DEEPEST:
        raise Exceeded
    size, files = left
    with suppress(OSError), os.scandir(directory) as found:
        for entry in found:
            with suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                size, files = size - status.st_blocks * STAT_BLOCK, files - 1
                if size < 0 or files < 0:
                    raise Exceeded
                if stat.S_ISDIR(status.st_mode):
                    below = os.open(entry.name, DIRECTORY, dir_fd=directory)
                    try:
                        size, files = _add(below, Caps(size, files), depth + 1)
                    finally:
                        os.close(below)
    return Caps(size, files)
