"""Getting along with launchers that keep images as `NAME.sqsh` and lock `NAME.sqsh.lock` (design, row 1).

Their lock is flock(2)'s, as flock(1), py-filelock and C++ programs take it. It lies where others may write: a FIFO, a
link, a file of somebody who never lets go (threats, row 16). So it is a courtesy for a part of the time, and never a
condition. It is never unlinked. Runs as the store's owner, in the worker, which holds the lock.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from contextlib import suppress

from warmstart.host import files
from warmstart.host.files import is_at, opened_dir, unlink_if_there, weakness
from warmstart.images.reference import DOCKER_HUB, Reference

IMAGE = ".sqsh"
LOCK = ".sqsh.lock"
BUSY = "busy"
# O_NONBLOCK: a FIFO does not hang. No O_CREAT: the kernel refuses that for others' files in sticky directories.
_OPEN = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_SANITISED = str.maketrans(dict.fromkeys("/:@#", "_"))

_held: dict[str, int] = {}


def names_of(reference: Reference) -> list[str]:
    """Return what launchers call the image: `sed 's/[/:@#]/_/g'` of each spelling, the shortest first."""
    full = reference.canonical()
    spellings = [full]
    if reference.registry == DOCKER_HUB:
        short = full.removeprefix(f"{DOCKER_HUB}/")
        spellings = [short.removeprefix("library/"), short, full]
    return list(dict.fromkeys(spelling.translate(_SANITISED) for spelling in spellings))


def is_unambiguous(reference: Reference) -> bool:
    """Tell whether a launcher's name for it can mean only this: other characters become `_`, too."""
    return "_" not in reference.canonical()


def try_lock(directory: str, name: str) -> str:
    """Take the launchers' lock of an image if nobody has it; returns "", `BUSY`, or why there is none."""
    try:
        with opened_dir(directory) as folder:
            fd = _open(name + LOCK, folder)
            try:
                problem = _lock(fd, name + LOCK, folder)
            except OSError:
                os.close(fd)
                raise
    except OSError as error:
        return f"{error.strerror}: {directory}/{name}{LOCK}"
    if problem:
        os.close(fd)
        return problem
    _held[name] = fd
    return ""


def unlock(name: str) -> None:
    """Let launchers have their lock; the file stays."""
    fd = _held.pop(name, None)
    if fd is not None:
        os.close(fd)


def link(directory: str, names: Sequence[str], path: str) -> int:
    """Keep links to an image under these names; returns how many there are.

    None where anybody but this account and root could put another file in a link's place, and none in the place of
    a file that is no link.
    """
    kept = 0
    with opened_dir(directory) as folder:
        status = os.fstat(folder)
        if weakness(status, (0, os.geteuid())):
            return 0
        for name in names:
            temp = f".{name[:200]}.{os.getpid()}"
            unlink_if_there(temp, folder)
            os.symlink(path, temp, dir_fd=folder)
            try:
                if _is_link_or_absent(name + IMAGE, folder):
                    os.rename(temp, name + IMAGE, src_dir_fd=folder, dst_dir_fd=folder)
                    kept += 1
            finally:
                unlink_if_there(temp, folder)
    return kept


def unlink(directory: str, path: str) -> None:
    """Remove the links to an image that goes."""
    with suppress(OSError), opened_dir(directory) as folder:
        for name in os.listdir(folder):
            with suppress(OSError):
                if os.readlink(name, dir_fd=folder) == path:
                    os.unlink(name, dir_fd=folder)


def _open(name: str, folder: int) -> int:
    for flags in (os.O_RDWR, os.O_RDONLY):  # flock(2) needs no right to write
        with suppress(PermissionError):
            try:
                return os.open(name, flags | _OPEN, dir_fd=folder)
            except FileNotFoundError:
                fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | _OPEN, 0o666, dir_fd=folder)
                os.fchmod(fd, 0o666)  # launchers of other users open it for writing: `exec 9>NAME.sqsh.lock`
                return fd
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def _lock(fd: int, name: str, folder: int) -> str:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1:
        raise OSError(errno.EINVAL, "not a plain file with one name")
    # Some releases of py-filelock unlink the file on release: a lock on the old one would be nobody else's.
    return "" if files.try_take(fd) and is_at(fd, name, folder) else BUSY


def _is_link_or_absent(name: str, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return True
