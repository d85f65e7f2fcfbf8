"""Root's stage: where bytes of a job lie until they are judged and packed, in a directory of root's, 0700.

Each file is read once, hashed on the way, and bounded by what its size was when it was opened (design, rule
3). Its mtime is kept; its mode, owner and xattrs are not.
"""

from __future__ import annotations

import os
import posixpath

from warmstart.host.deadline import Deadline
from warmstart.host.files import ReadFailed, copy_hashed
from warmstart.host.untrusted import UNREADABLE, TurnedAway
from warmstart.store.manifest import LATEST_NS, File

CHANGED = "changed while it was read"

_LEFT_FREE = 1 << 30  # bytes, or a twentieth of the disk where that is less


def room(stage: str | int) -> int:
    """Return how many bytes a stage (a path, or a descriptor) may still take: others need its disk, too."""
    found = os.statvfs(stage)
    left = min(_LEFT_FREE, found.f_blocks * found.f_frsize // 20)
    return max(0, found.f_bavail * found.f_frsize - left)


class OutOfTime(Exception):  # never leaves the harvest
    """The deadline passed in the middle of a file."""


class Stage:
    """An empty directory of root's that fills up with files."""

    def __init__(self, fd: int) -> None:
        """`fd` stays the caller's."""
        self._fd = fd
        self._made: set[str] = {""}

    def take(self, source: int, path: str, deadline: Deadline) -> File:
        """Copy an open file to `path` and return what it was.

        `TurnedAway` where it changed meanwhile, `OutOfTime` at the deadline, `OSError` is the stage's disk;
        in all three cases the file does not stay. Bytes count as the file's size says: a hole is zeros.
        """
        self._make_parents(posixpath.dirname(path))
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        out = os.open(path, flags, 0o600, dir_fd=self._fd)
        try:
            before = os.fstat(source)
            sha256 = _copy(source, out, before.st_size, deadline)
            if _state(os.fstat(source)) != _state(before):
                raise TurnedAway(CHANGED)
            mtime_ns = min(max(before.st_mtime_ns, 0), LATEST_NS)
            os.fchmod(out, 0o644)
            os.utime(out, ns=(mtime_ns, mtime_ns))
        except BaseException:
            self.discard([path])
            raise
        finally:
            os.close(out)
        return File(before.st_size, sha256, mtime_ns)

    def discard(self, paths: list[str]) -> None:
        """Remove files that were taken, and the directories that are empty then."""
        for path in paths:
            os.unlink(path, dir_fd=self._fd)
        for folder in {posixpath.dirname(path) for path in paths}:
            self._remove_empty(folder)

    def _remove_empty(self, folder: str) -> None:
        """Remove a directory and those above it, as far as they are empty."""
        while folder:
            try:
                os.rmdir(folder, dir_fd=self._fd)
            except OSError:  # others' files are in it, or it is gone already
                return
            self._made.discard(folder)
            folder = posixpath.dirname(folder)

    def _make_parents(self, folder: str) -> None:
        if folder in self._made:
            return
        self._make_parents(posixpath.dirname(folder))
        os.mkdir(folder, 0o755, dir_fd=self._fd)
        os.chmod(folder, 0o755, dir_fd=self._fd)  # whatever the umask is
        self._made.add(folder)


def _copy(source: int, out: int, size: int, deadline: Deadline) -> str:
    def in_time() -> None:
        if deadline.expired():
            raise OutOfTime

    try:
        copied = copy_hashed(source, out, most=size, watch=in_time)
    except ReadFailed as error:
        raise TurnedAway(UNREADABLE) from error
    if copied.size != size:
        raise TurnedAway(CHANGED)
    return copied.sha256


def _state(status: os.stat_result) -> tuple[int, ...]:
    # ctime, too: the owner can set mtime back.
    return (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_nlink, status.st_uid)
