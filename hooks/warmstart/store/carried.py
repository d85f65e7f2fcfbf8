"""Files of an export in a directory: put and opened by descriptor, whole, through no link."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from warmstart.host.files import copy_hashed, ensure_dir, open_regular, opened_dir, unlink_if_there


def put(top: int, name: str, source: int, sha256: str) -> None:
    """Put a file in its place below a directory, whole; `FileExistsError` where another one is there."""
    with _folder(top, os.path.dirname(name)) as folder:
        base = os.path.basename(name)
        with suppress(FileNotFoundError):
            there = open_regular(base, folder)
            try:
                if copy(there, 0, os.fstat(there).st_size, None) != sha256:
                    raise FileExistsError(errno.EEXIST, "another file of this name is there", name)
            finally:
                os.close(there)
            return
        temp = f".{base}.part"
        unlink_if_there(temp, folder)
        out = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
        try:
            copy(source, 0, os.fstat(source).st_size, out)
            os.fsync(out)
        finally:
            os.close(out)
        os.rename(temp, base, src_dir_fd=folder, dst_dir_fd=folder)
        os.fsync(folder)


@contextmanager
def _folder(top: int, path: str) -> Iterator[int]:
    """Give a directory of ours below an export, made where it lacks."""
    fd = os.dup(top)
    try:
        for part in path.split("/") if path else ():
            ensure_dir(part, 0o700, fd)
            with opened_dir(part, fd) as below:
                os.dup2(below, fd, inheritable=False)
        yield fd
    finally:
        os.close(fd)


def open_below(top: int, name: str) -> int:
    """Open a regular file below a directory; follows no link."""
    *folders, base = name.split("/")
    fd = os.dup(top)
    try:
        for part in folders:
            with opened_dir(part, fd) as below:
                os.dup2(below, fd, inheritable=False)
        return open_regular(base, fd)
    finally:
        os.close(fd)


def copy(source: int, offset: int, size: int, out: int | None) -> str:
    """Copy bytes, if there is where to, and return their SHA-256; `EIO` where there are fewer."""
    copied = copy_hashed(source, out, offset=offset, most=size)
    if copied.size != size:
        raise OSError(errno.EIO, "it ended early")
    return copied.sha256
