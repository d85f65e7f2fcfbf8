"""The reserve: files and directories that are written out in time, for what hooks write while the state's disk is full.

    <node>/reserve/                root, 0700
        file-NNN                   `SIZE` bytes, all of them newlines
        directory-NNN              empty

Space that is freed on a full disk goes to whoever filled it. So nothing is removed to make room: a writer renames one
of these, which is its claim if several want one, and overwrites it in place, which takes neither a block nor an inode.
What is left of the newlines is cut off. A file gets the name that readers look for when its content is complete, so
they never see a half one.

File systems that never overwrite in place (btrfs, ZFS) may need a block all the same. Then, as without a reserve, the
caller gets `ENOSPC`, and the job is told by way of `paths.SPARE`.

The reserve is used up, not refilled, while the disk is full. `fill`, by maintenance and by a node's first hook, makes
what is missing where there is room. Not imported by a hook that finds room.
"""

from __future__ import annotations

import errno
import os
from itertools import count, islice

from warmstart.host.deadline import after
from warmstart.host.files import DIRECTORY, FULL, ensure_dir, opened_dir, unlink_if_there, wait_flock, write_all
from warmstart.host.space import room
from warmstart.lean import Iterator, contextmanager, suppress

SIZE = 32 << 10  # bytes; a run with a thousand seeded entries is longer, most are a tenth of it
FILES = 128  # a prolog and an epilog take six, and a background import one
DIRECTORIES = 64
_FILE, _DIRECTORY, _NEW = "file-", "directory-", ".new"
_LOCK_S = 1.0
_OVERWRITE = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC


def fill(reserve: str) -> int:
    """Make what is missing, if the disk keeps its floor; return how many are missing then. Raises `OSError`."""
    ensure_dir(reserve, 0o700)
    with _locked(reserve) as fd:
        unlink_if_there(_NEW, fd)
        names = _missing(fd)
        if room(fd) < SIZE * len(names):
            return len(names)
        for number, name in enumerate(names):
            try:
                _make(fd, name)
            except OSError as error:
                unlink_if_there(_NEW, fd)
                if error.errno in FULL:
                    return len(names) - number
                raise
    return 0


def missing(reserve: str) -> int:
    """Return how many files and directories the reserve lacks. Raises `OSError`."""
    try:
        with opened_dir(reserve) as fd:
            return len(_missing(fd))
    except FileNotFoundError:
        return DIRECTORIES + FILES


def make_directory(reserve: str, dir_fd: int | None, name: str, mode: int) -> None:
    """Make a directory of the reserve's. Raises `FileExistsError`, or `ENOSPC` if none is left."""
    with _locked(reserve) as fd:  # rename(2) would replace an empty directory that another hook of the job has made
        try:
            os.mkdir(name, mode, dir_fd=dir_fd)
        except OSError as error:
            if error.errno not in FULL:
                raise
            _claim(fd, _DIRECTORY, dir_fd, name)
    os.chmod(name, mode, dir_fd=dir_fd)


def open_file(reserve: str, dir_fd: int, name: str, mode: int) -> int:
    """Return a descriptor, for overwriting, of a file of `SIZE` newlines under this name; `ENOSPC` if none is left."""
    with _opened(reserve) as fd:
        while True:
            _claim(fd, _FILE, dir_fd, name)
            file = os.open(name, _OVERWRITE, dir_fd=dir_fd)
            if os.fstat(file).st_size == SIZE:  # else a power failure came before its bytes were on the disk
                os.fchmod(file, mode)
                return file
            os.close(file)


def write_file(reserve: str, dir_fd: int, name: str, data: bytes, mode: int) -> int:
    """Write a file of the reserve's under this name; return its descriptor. `ENOSPC` if none is left, or `data` long.

    The caller gives it a name that readers look for afterwards.
    """
    if len(data) > SIZE:
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}, and {len(data)} bytes are more than a reserved file")
    file = open_file(reserve, dir_fd, name, mode)
    try:
        write_all(file, data)
        os.ftruncate(file, len(data))
    except OSError:
        os.close(file)
        raise
    return file


@contextmanager
def _opened(reserve: str) -> Iterator[int]:
    try:
        fd = os.open(reserve, DIRECTORY)
    except FileNotFoundError as error:
        raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}, and there is no reserve", reserve) from error
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _locked(reserve: str) -> Iterator[int]:
    """Open the reserve and lock it against other hooks; it is root's alone, 0700."""
    with _opened(reserve) as fd:
        if not wait_flock(fd, after(_LOCK_S)):
            raise OSError(errno.ENOSPC, "another process has locked the reserve", reserve)
        yield fd


def _missing(fd: int) -> list[str]:
    there = {
        name
        for name in os.listdir(fd)
        if name.startswith(_DIRECTORY) or os.stat(name, dir_fd=fd, follow_symlinks=False).st_size == SIZE
    }
    wanted: list[str] = []
    for kind, number in ((_DIRECTORY, DIRECTORIES), (_FILE, FILES)):
        free = (name for name in map(f"{kind}{{:03}}".format, count()) if name not in there)
        wanted += islice(free, number - sum(name.startswith(kind) for name in there))
    return wanted


def _make(fd: int, name: str) -> None:
    if name.startswith(_DIRECTORY):
        os.mkdir(name, 0o700, dir_fd=fd)
        return
    file = os.open(_NEW, _OVERWRITE | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=fd)
    try:
        write_all(file, b"\n" * SIZE)  # written out: fallocate(2) leaves extents whose conversion may need a block
    finally:
        os.close(file)
    os.rename(_NEW, name, src_dir_fd=fd, dst_dir_fd=fd)


def _claim(fd: int, kind: str, dir_fd: int | None, name: str) -> None:
    for spare in os.listdir(fd):
        if spare.startswith(kind):
            with suppress(FileNotFoundError):  # another hook was faster
                os.rename(spare, name, src_dir_fd=fd, dst_dir_fd=dir_fd)
                return
    raise OSError(errno.ENOSPC, f"{os.strerror(errno.ENOSPC)}, and the reserve is used up", name)
