"""Space that several users or processes share: reservations on a disk, and who gives way (docs/threats.md).

A writer reserves first and then looks at what is left, so that two writers do not count on the same bytes. Some space
and some inodes are always left for others: the disk's floor (rows 23 and 26). What is over a shared bound is taken
from whoever holds most (row 27).
"""

from __future__ import annotations

import errno
import os

from warmstart.lean import TYPE_CHECKING, Callable, Iterable, Iterator, NamedTuple, libc

if TYPE_CHECKING:
    from collections.abc import Hashable

_FLOOR = 1 << 30  # bytes, or a twentieth of the disk if that is less
_STEP = 16 << 20  # bytes; fewer are not worth a system call
_KEEP_SIZE, _PUNCH_HOLE = 1, 2  # FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE (linux/falloc.h)
_UNSUPPORTED = frozenset({errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.EISDIR})


def room(place: str | int) -> int:
    """Return how many bytes may still be written on the file system of a path or descriptor; 0 at the floor.

    It is 0, too, if less than a twentieth of the inodes is free.
    """
    disk = os.statvfs(place)
    # statvfs(3) reports 0 inodes where their number is not fixed; then only blocks count.
    if disk.f_favail * 20 < disk.f_files:
        return 0
    floor = min(_FLOOR, disk.f_blocks * disk.f_frsize // 20)
    return max(0, disk.f_bavail * disk.f_frsize - floor)


def inodes(fd: int) -> float:
    """Return how many files may still be made on the file system of a descriptor, as `room` counts; infinity: any."""
    disk = os.fstatvfs(fd)
    return max(0, disk.f_favail - disk.f_files // 20) if disk.f_files else float("inf")


def no_room(fd: int, size: int) -> str:
    """Return why `size` bytes more have no room on the file system of an open file or directory."""
    disk, path = os.fstatvfs(fd), os.readlink(f"/proc/self/fd/{fd}")
    directory = path if os.path.isdir(path) else os.path.dirname(path)
    free, floor = (disk.f_bavail * disk.f_frsize) >> 20, min(_FLOOR, disk.f_blocks * disk.f_frsize // 20) >> 20
    return (
        f"the disk of {directory} has no room for {-(-size >> 20)} MiB: {free} MiB and {disk.f_favail} of "
        f"{disk.f_files} inodes are free, {floor} MiB and a twentieth of the inodes stay free"
    )


class Held(NamedTuple):
    """Something that counts towards a bound which several holders share."""

    holder: Hashable
    size: int  # bytes, or 1 where the number is bounded
    may_go: bool = True


def fair_order(items: Iterable[Held]) -> Iterator[int]:
    """Yield positions in the order of eviction: each time the first item of the holder that still has most.

    `items` are ordered by age or last use, those that should go first at the start.
    """
    sizes: list[int] = []
    held: dict[Hashable, int] = {}
    queues: dict[Hashable, list[int]] = {}  # the next one last
    for number, item in enumerate(items):
        sizes.append(item.size)
        held[item.holder] = held.get(item.holder, 0) + item.size
        if item.may_go:
            queues.setdefault(item.holder, []).append(number)
    for queue in queues.values():
        queue.reverse()
    while queues:
        holder = max(queues, key=held.__getitem__)
        number = queues[holder].pop()
        if not queues[holder]:
            del queues[holder]
        held[holder] -= sizes[number]
        yield number


class Reservation:
    """Bytes that one writer may count on, on the file system of a directory. Starts with none.

    An unnamed file has the bytes (open(2), O_TMPFILE; fallocate(2)), so none stay reserved when the process dies.
    Where the file system lacks either, `hold` only checks that the bytes are free. The end of a `with` releases them.
    """

    def __init__(self, directory: int) -> None:
        """`directory` is a descriptor."""
        self.size = 0  # bytes
        self._length = 0  # of the file, in bytes
        self._holds = True
        self._fd = -1
        try:
            self._fd = os.open(".", os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600, dir_fd=directory)
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            self._fd = os.dup(directory)
            self._holds = False

    def __enter__(self) -> Reservation:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def __del__(self) -> None:
        self._close()

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def hold(self, size: int) -> None:
        """Hold `size` bytes from now on; raises `OSError` (`ENOSPC`), and holds what it held, at the disk's floor."""
        if size > self._length and not any(self._grow(length) for length in (size + _STEP, size)):
            raise OSError(errno.ENOSPC, no_room(self._fd, size))
        if self._length > size + 2 * _STEP:
            self._cut(size + _STEP)
        self.size = size

    def while_written(self, path: str) -> Callable[[], None]:
        """Return a function that gives up as many bytes as another program has written to `path` by then."""
        before = self.size

        def watch() -> None:
            try:
                written = os.stat(path, follow_symlinks=False).st_blocks * 512
            except FileNotFoundError:
                return
            self.hold(max(0, before - written))

        return watch

    def _grow(self, length: int) -> bool:
        if not self._holds:
            return room(self._fd) >= length  # each time: nothing is held
        before = self._length
        try:
            if not allocate(self._fd, length):
                self._holds = False
                return self._grow(length)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
        else:
            self._length = length
            if room(self._fd):
                return True
        self._cut(before)  # a failed fallocate(2) may have allocated a part
        return False

    def _cut(self, length: int) -> None:
        os.ftruncate(self._fd, length)
        self._length = length


def allocate(fd: int, size: int, *, keep_length: bool = False) -> bool:
    """Make a file at least `size` bytes long, with disk space for all of them; False if the file system cannot.

    `keep_length` leaves the file as long as it is. Not posix_fallocate(3): where the file system cannot allocate, that
    writes to every block. Raises `OSError`.
    """
    try:
        libc("fallocate", fd, _KEEP_SIZE if keep_length else 0, 0, size)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        return False
    return True


def give_back(fd: int, begin: int, size: int) -> None:
    """Make a hole in a file, where the file system can. Raises `OSError`."""
    try:
        libc("fallocate", fd, _KEEP_SIZE | _PUNCH_HOLE, begin, size)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
