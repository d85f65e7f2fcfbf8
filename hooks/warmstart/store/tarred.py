"""The tar file of an export, as root writes it."""

from __future__ import annotations

import errno
import os
import tarfile
from collections.abc import Iterator
from contextlib import contextmanager

from warmstart.host.files import unlink_if_there


class Archive:
    """A tar file that is being written under another name."""

    def __init__(self, folder: int, name: str, temp: str, fd: int) -> None:
        self._folder, self._name, self._temp, self._fd = folder, name, temp, fd
        self._file = os.fdopen(os.dup(fd), "wb")
        self._tar = tarfile.open(fileobj=self._file, mode="w")  # noqa: SIM115 - `finish` closes it

    def add(self, name: str, source: int, size: int) -> None:
        """Add a file's bytes, from its start."""
        info = tarfile.TarInfo(name)
        info.size, info.mode = size, 0o600
        with open(f"/proc/self/fd/{source}", "rb") as file:
            self._tar.addfile(info, file)

    def finish(self) -> None:
        """Give it its name; `EEXIST` where something has it by now."""
        self._tar.close()
        self._file.flush()
        os.fsync(self._fd)
        os.link(self._temp, self._name, src_dir_fd=self._folder, dst_dir_fd=self._folder, follow_symlinks=False)
        os.fsync(self._folder)

    def close(self) -> None:
        """Let go of the file, finished or not."""
        self._file.close()


@contextmanager
def new(folder: int, name: str) -> Iterator[Archive]:
    """Give a new tar file in a directory of root's; what a dead one left under its temporary name goes. `EEXIST`."""
    temp = f".{name}.part"
    unlink_if_there(temp, folder)
    if name in os.listdir(folder):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), name)
    fd = os.open(temp, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    archive = Archive(folder, name, temp, fd)
    try:
        yield archive
    finally:
        archive.close()
        os.close(fd)
        unlink_if_there(temp, folder)
