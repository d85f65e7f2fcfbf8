"""A file system of its own for one import: what layers expand to is bounded by the kernel (threats, rows 11 and 12).

An ext4 in a sparse file, on a loop device, `nosuid,nodev`: 25 ms and 1 MiB, however large it may get. What does not fit
ends in ENOSPC for the import and for nobody else; removing the file removes millions of files at once. Without a
journal, barriers and flushes: it lives as long as the import. A full disk below it shows as EIO, and not to whoever
wrote: `settle` asks for that. Every epilog imports this for the name of that file, so nothing slow is imported here.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from typing import NamedTuple

from warmstart.errors import WarmstartError
from warmstart.host.deadline import after

MKE2FS = "/sbin/mke2fs"
MOUNT = "/bin/mount"
FILE = "disk"
SECONDS = 30.0
FILESYSTEM_BLOCK = 4096
INODE = 256
# Superblocks, bitmaps and the reserve for them, beside the inode tables.
OVERHEAD = 16 << 20
FEATURES = "^has_journal,^resize_inode"
OPTIONS = "loop,nosuid,nodev,noatime,noinit_itable,barrier=0,errors=continue"


class Caps(NamedTuple):
    """What one import may take on a node, all that lies there at once: bytes, and files and directories."""

    size: int
    files: int


def mounted(outer: int, path: str, name: str, caps: Caps) -> bool:
    """Mount a new file system of that size on the directory `name` of `path`, whose open descriptor is `outer`.

    False where this node can't (no loop devices, no mke2fs, no file may be that large): nothing is left of the attempt
    then. `OSError` for a disk that fails. Nobody but root may be able to rename anything above `path`.
    """
    files = min(caps.files, caps.size // FILESYSTEM_BLOCK)
    fd = os.open(FILE, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=outer)
    try:
        os.ftruncate(fd, caps.size + files * INODE + caps.size // 1024 + OVERHEAD)
        is_made = True
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        is_made = False
    finally:
        os.close(fd)
    if is_made and _run(_make(f"{path}/{FILE}", files)) and _run(_mount(f"{path}/{FILE}", f"{path}/{name}")):
        return True
    os.unlink(FILE, dir_fd=outer)
    return False


def sync_filesystem(fd: int) -> None:
    """Have everything written that was written to a file system; `OSError` if any of it was lost (kernel 5.8)."""
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syncfs(fd) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _make(path: str, files: int) -> list[str]:
    return [
        *(MKE2FS, "-q", "-F", "-t", "ext4", "-b", str(FILESYSTEM_BLOCK), "-I", str(INODE), "-m", "0", "-N", str(files)),
        *("-O", FEATURES, "-E", "lazy_itable_init=1,nodiscard", path),
    ]


def _mount(path: str, target: str) -> list[str]:
    return [MOUNT, "-n", "-t", "ext4", "-o", OPTIONS, path, target]


def _run(argv: list[str]) -> bool:
    from warmstart.host import process

    with suppress(WarmstartError):
        return process.run(argv, deadline=after(SECONDS)).status == 0
    return False
