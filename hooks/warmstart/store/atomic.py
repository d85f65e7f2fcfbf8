"""Publish a file in the store atomically and without overwriting (docs/architecture.md, rule 1).

Temp file in the same directory → the caller's check → fsync → link to the final name → fsync of the directory.
link(2) never overwrites; rename(2) does, and NFS and Lustre have no RENAME_NOREPLACE. Runs as the store's owner.
"""

from __future__ import annotations

import errno
import os

from warmstart.host.files import unlink_if_there, write_all
from warmstart.lean import Iterator, contextmanager

TEMP_PREFIX = ".tmp-"


@contextmanager
def temp_file(dir_fd: int, writer: str, mode: int = 0o444) -> Iterator[tuple[str, int]]:
    """Create a temp file in the store; yields its name and descriptor, and removes the name afterwards.

    `writer` (node and run id) is part of the name, so that leftovers can be traced. An error names the directory.
    """
    name = f"{TEMP_PREFIX}{writer}-{os.getpid()}-{os.urandom(4).hex()}"
    try:
        fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=dir_fd)
    except OSError as error:
        error.filename = os.readlink(f"/proc/self/fd/{dir_fd}")
        raise
    try:
        os.fchmod(fd, mode)
        yield name, fd
    finally:
        os.close(fd)
        unlink_if_there(name, dir_fd)


def publish(dir_fd: int, temp: str, fd: int, name: str) -> bool:
    """Sync the complete temp file and link it to its final name; return False if another file has the name.

    NFS may repeat a link request that had succeeded and then report EEXIST, so the inodes decide who was first.
    """
    os.fsync(fd)
    try:
        os.link(temp, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd, follow_symlinks=False)
    except FileExistsError:
        mine, there = os.fstat(fd), os.stat(name, dir_fd=dir_fd, follow_symlinks=False)
        if (mine.st_dev, mine.st_ino) != (there.st_dev, there.st_ino):
            return False
    _sync_directory(dir_fd)
    return True


def put(dir_fd: int, writer: str, name: str, data: bytes) -> bool:
    """Publish a file with this content; return False if another file has the name."""
    with temp_file(dir_fd, writer) as (temp, fd):
        write_all(fd, data)
        return publish(dir_fd, temp, fd, name)


def replace(dir_fd: int, writer: str, name: str, data: bytes, mode: int = 0o444) -> None:
    """Replace a file atomically: readers see the old or the new content. Never used for images and bundles."""
    with temp_file(dir_fd, writer, mode) as (temp, fd):
        write_all(fd, data)
        os.fsync(fd)
        os.rename(temp, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    _sync_directory(dir_fd)


def _sync_directory(dir_fd: int) -> None:
    try:
        os.fsync(dir_fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # EINVAL: a FUSE file system without fsyncdir
            raise
