"""Open files in a tree whose hostile owner may change it at any moment (docs/threats.md, rows 7 and 13). Runs as root.

Everything is opened twice. The first open uses O_PATH, which waits for nobody: no writer of a FIFO, no lease, no FUSE
daemon. The second one opens the same inode for reading, once it is known to be a directory or a regular file on the
tree's own mount. So nothing else is ever opened for reading, whatever the owner swaps in between.
"""

from __future__ import annotations

import errno
import os
import posixpath
import stat

from warmstart.host.files import DIRECTORY, closing, mount_id
from warmstart.lean import Collection, Iterator, contextmanager

_PATH = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: without it, the open waits for a job that holds a write lease.
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

LINK = "symbolic link"
MOUNT = "on another mount"
SPECIAL = "neither file nor directory"
HARD_LINK = "has more than one link"
FOREIGN = "belongs to another uid"
GONE = "gone"
SWAPPED = "is no directory any more"
UNREADABLE = "unreadable"


class TurnedAway(Exception):  # the harvest turns it into a count and an example
    """A file or directory of the tree is refused; the argument is one of this module's reasons."""

    @property
    def reason(self) -> str:
        """The reason, in a fixed vocabulary."""
        return str(self.args[0])


def open_directory(name: str, parent_fd: int, mount: str) -> int:
    """Open a directory of the tree for listing; `TurnedAway` for anything else. `mount` is as from `mount_id`."""
    fd = _open_path(name, parent_fd, os.O_DIRECTORY)
    try:
        if mount_id(fd) != mount:
            raise TurnedAway(MOUNT)
        return os.open(".", DIRECTORY, dir_fd=fd)
    except OSError as error:
        raise TurnedAway(UNREADABLE) from error
    finally:
        os.close(fd)


@contextmanager
def opened_of_job(name: str, parent_fd: int) -> Iterator[int]:
    """Open a directory of a job's, below one of root's, for a `with`; `OSError` for anything else.

    Once a job may run, the hooks open what it owns by this function, and by `open_directory` and `open_file` below it.
    """
    try:
        fd = open_directory(name, parent_fd, mount_id(parent_fd))
    except TurnedAway as error:
        raise OSError(errno.EXDEV if error.reason == MOUNT else errno.ENOENT, error.reason, name) from error
    try:
        yield fd
    finally:
        os.close(fd)


def open_file(name: str, parent_fd: int, mount: str, owners: Collection[int] | None) -> int:
    """Open a regular file with one link, owned by one of these uids, for reading; `TurnedAway` for anything else.

    Without `owners` whoever owns it, and however many links it has.
    """
    fd = _open_path(name, parent_fd, 0)
    try:
        if mount_id(fd) != mount:
            raise TurnedAway(MOUNT)
        status = os.fstat(fd)
        if stat.S_ISLNK(status.st_mode):
            raise TurnedAway(LINK)
        if not stat.S_ISREG(status.st_mode):
            raise TurnedAway(SPECIAL)
        if owners is not None and status.st_nlink != 1:
            raise TurnedAway(HARD_LINK if status.st_nlink else GONE)
        if owners is not None and status.st_uid not in owners:
            raise TurnedAway(FOREIGN)
        return os.open(f"/proc/self/fd/{fd}", _READ)
    except OSError as error:
        raise TurnedAway(UNREADABLE) from error
    finally:
        os.close(fd)


def _open_path(name: str, parent_fd: int, flags: int) -> int:
    try:
        return os.open(name, _PATH | flags, dir_fd=parent_fd)
    except OSError as error:
        reasons = {errno.ENOENT: GONE, errno.ENOTDIR: SWAPPED}
        raise TurnedAway(reasons.get(error.errno or 0, UNREADABLE)) from error


def open_branch(path: str, base_fd: int, mount: str) -> int:
    """Open the directory at the relative `path` ("" for the base), each component as `open_directory` does."""
    fd = os.dup(base_fd)
    for part in path.split("/") if path else ():
        try:
            below = open_directory(part, fd, mount)
        finally:
            os.close(fd)
        fd = below
    return fd


class Tree:
    """A tree whose files belong to the uids `owners`. Keeps the directory of the last file open.

    Callers open files in the order of their names, so the next one is usually in the same directory.
    """

    def __init__(self, top_fd: int, mount: str, *owners: int) -> None:
        """`top_fd` stays open and is closed by the caller; `mount` is its `mount_id`."""
        self._top = top_fd
        self._mount = mount
        self._owners = owners
        self._path = ""
        self._fd = os.dup(top_fd)

    def open_file(self, path: str) -> int:
        """Open a regular file with one link, owned by an owner, for reading; `TurnedAway` for anything else."""
        folder, name = posixpath.split(path)
        if folder != self._path:
            self._change_to(folder)
        return open_file(name, self._fd, self._mount, self._owners)

    def status(self, path: str) -> os.stat_result:
        """Return what stat(2) says of what is on the mount of the tree; `TurnedAway` for the rest."""
        folder, name = posixpath.split(path)
        if folder != self._path:
            self._change_to(folder)
        with closing(_open_path(name, self._fd, 0)) as fd:
            if mount_id(fd) != self._mount:
                raise TurnedAway(MOUNT)
            return os.fstat(fd)

    def close(self) -> None:
        """Close the open directory."""
        os.close(self._fd)

    def _change_to(self, folder: str) -> None:
        fd = open_branch(folder, self._top, self._mount)
        os.close(self._fd)
        self._path, self._fd = folder, fd
