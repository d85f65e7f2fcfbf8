"""Take what an importer made away from its account, for good (threats, row 11).

The importer's processes are dead by now, with their namespaces. What is proved here is proved of an inode, not
of a name: one link, regular, the import account's; then it is root's and read-only; then no descriptor open
for writing is left anywhere, a mapping or a descriptor that was passed on included: the kernel grants a read
lease only then (fcntl(2), F_SETLEASE). The validated inode is the one that is copied (docs/adr/0002).
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from warmstart.errors import StoreError
from warmstart.host.files import open_regular


class ImageNotOurs(StoreError):
    """What the importer left can't be made ours alone."""

    code = "image-not-ours"
    template = "the importer's {name} can't be trusted: {problem}"
    hint = "is paths.workspace on a local disk (ext4, xfs), and does the import account run nothing else?"


def claim(dir_fd: int, name: str, uid: int) -> int:
    """Return a descriptor of the file `name`, now root's, 0444, and written by nobody; `uid` is the importer's.

    Raises `ImageNotOurs`, or `OSError` for a disk that fails.
    """
    try:
        fd = open_regular(name, dir_fd)
    except OSError as error:
        raise ImageNotOurs(name=name, problem=error.strerror) from error
    try:
        _check(fd, name, uid)
        os.fchown(fd, os.geteuid(), os.getegid())
        os.fchmod(fd, 0o444)
        _prove_unwritten(fd, name)
        _check(fd, name, os.geteuid())  # a link made before the inode was ours would be one that stays
    except BaseException:
        os.close(fd)
        raise
    return fd


def _check(fd: int, name: str, uid: int) -> None:
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_nlink != 1 or status.st_uid != uid:
        problem = f"uid {status.st_uid}, {status.st_nlink} links, mode {stat.S_IMODE(status.st_mode):o}"
        raise ImageNotOurs(name=name, problem=problem)


def _prove_unwritten(fd: int, name: str) -> None:
    try:
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as error:
        held = error.errno in (errno.EAGAIN, errno.EACCES)
        problem = "somebody has it open for writing" if held else f"no lease on it: {error.strerror}"
        raise ImageNotOurs(name=name, problem=problem) from error
    fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
