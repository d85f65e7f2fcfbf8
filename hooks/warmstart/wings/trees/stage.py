"""Turn what a user's process has read of a tree into files of root's own, for mksquashfs (docs/threats.md, row 50).

Root makes every inode itself, with a descriptor of the directory that it has just made as the parent: a name is one
component, a mode has permissions and nothing else, a link is text. Everything is bounded again here, and space is
reserved before it is used.
"""

from __future__ import annotations

import os
import posixpath
import struct
from collections.abc import Callable
from typing import NamedTuple

from warmstart.caches.store.layout import LATEST_NS
from warmstart.host.copying import CHUNK as READ
from warmstart.host.files import write_all
from warmstart.host.space import Reservation
from warmstart.wings.trees import walk
from warmstart.wings.trees.current import TreeUnusable
from warmstart.wings.trees.walk import Bounds, TreeRefused

MOST_EXAMPLES = 20  # of paths that are left out
LONGEST_TARGET = 4095  # bytes of a symbolic link's target
_BLOCK = 4096  # bytes; what a small file takes on a disk
_PERMISSIONS = 0o777  # neither setuid nor setgid
_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Staged(NamedTuple):
    """What a stage has of a tree."""

    files: int  # names
    size: int  # bytes of all files
    left_out: int
    examples: list[tuple[str, str]]  # at most 20 pairs: path in printable ASCII, reason


class _Open(NamedTuple):
    fd: int
    mode: int
    mtime_ns: int


class Stage:
    """A tree of root's below the directory `fd`, which is empty and which the caller closes. A context manager."""

    def __init__(self, fd: int, tree: str, bounds: Bounds) -> None:
        """`tree` is for messages."""
        self._tree = tree
        self._bounds = bounds
        self._stack = [_Open(os.dup(fd), 0o755, 0)]
        self._space = Reservation(fd)
        self._file = -1
        self._after: tuple[int, int] = (0, 0)  # mode and mtime of the file that is written
        self._left = 0  # bytes of it
        self._files = self._size = self._left_out = self._taken = 0
        self._examples: list[tuple[str, str]] = []

    def __enter__(self) -> Stage:
        return self

    def __exit__(self, *_: object) -> None:
        for opened in self._stack:
            os.close(opened.fd)
        self._stack.clear()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    @property
    def space(self) -> Reservation:
        """The reservation, which holds as many bytes as the files have, for the packed copy."""
        return self._space

    def take(self, records: int) -> bool:
        """Take the records of an open file; return whether they were the last ones.

        Raises `TreeUnusable`, `TreeRefused`, and `OSError` if the disk fails or is at its floor.
        """
        os.lseek(records, 0, os.SEEK_SET)
        with os.fdopen(os.dup(records), "rb", READ) as file:
            while kind := file.read(1):
                if kind == walk.END:
                    if len(self._stack) != 1 or self._left:
                        raise self._malformed("it ends in a directory or file")
                    return True
                self._record(kind, _Records(file.read))
        return False

    def result(self) -> Staged:
        """Return what was taken."""
        return Staged(self._files, self._size, self._left_out, self._examples)

    def _record(self, kind: bytes, of: _Records) -> None:
        try:
            if kind == walk.BYTES:
                self._write(of.piece())
                return
            if self._left:
                raise self._malformed("a file is shorter than its size")
            if kind == walk.DIRECTORY:
                self._enter(of.name(), *of.attributes()[:2])
            elif kind == walk.UP:
                self._leave()
            elif kind == walk.FILE:
                self._begin(of.name(), *of.attributes())
            elif kind == walk.LINK:
                name, (_, mtime_ns, _) = of.name(), of.attributes()
                self._link(name, mtime_ns, of.name())
            elif kind == walk.LEFT_OUT:
                self._leave_out(of.name(), of.name())
            else:
                raise self._malformed(f"unknown kind {kind!r}")
        except struct.error as error:
            raise self._malformed("it ends in a record") from error
        except FileExistsError as error:  # names that came and went, or a file system that lies
            raise TreeUnusable(tree=self._tree, problem="it has a name twice") from error

    def _enter(self, name: bytes, mode: int, mtime_ns: int) -> None:
        self._reserve(name, 0)
        if len(self._stack) > walk.DEEPEST:
            raise self._malformed("too deep")
        parent = self._stack[-1].fd
        os.mkdir(name, 0o700, dir_fd=parent)
        self._stack.append(_Open(os.open(name, _OPEN, dir_fd=parent), mode, mtime_ns))

    def _leave(self) -> None:
        if len(self._stack) == 1:
            raise self._malformed("it leaves the tree")
        opened = self._stack.pop()
        try:
            _finish(opened.fd, opened.mode, opened.mtime_ns)
        finally:
            os.close(opened.fd)

    def _begin(self, name: bytes, mode: int, mtime_ns: int, size: int) -> None:
        self._reserve(name, size)
        self._file = os.open(name, _NEW, 0o600, dir_fd=self._stack[-1].fd)
        self._left, self._after = size, (mode, mtime_ns)
        self._end_if_whole()

    def _write(self, piece: bytes) -> None:
        if self._file < 0 or len(piece) > self._left or not piece:
            raise self._malformed("bytes of no file")
        write_all(self._file, piece)
        self._left -= len(piece)
        self._end_if_whole()

    def _end_if_whole(self) -> None:
        if not self._left:
            _finish(self._file, *self._after)
            os.close(self._file)
            self._file = -1

    def _link(self, name: bytes, mtime_ns: int, target: bytes) -> None:
        self._reserve(name, 0)
        if not 0 < len(target) <= LONGEST_TARGET or b"\0" in target:
            raise self._malformed("a link's target")
        parent = self._stack[-1].fd
        os.symlink(target, name, dir_fd=parent)
        times = (_time(mtime_ns), _time(mtime_ns))
        os.utime(name, ns=times, dir_fd=parent, follow_symlinks=False)

    def _leave_out(self, path: bytes, reason: bytes) -> None:
        self._left_out += 1
        if len(self._examples) < MOST_EXAMPLES:
            self._examples.append((_printable(path), _printable(reason)))

    def _reserve(self, name: bytes, size: int) -> None:
        """Check a name, count it, and hold the space for it and for its bytes in the packed copy."""
        if not 0 < len(name) <= walk.MOST_NAMES or name in (b".", b"..") or b"/" in name or b"\0" in name:
            raise self._malformed("a name")
        self._files += 1
        self._size += size
        if self._files > self._bounds.files or self._size > self._bounds.size:
            raise TreeRefused(tree=self._tree, problem="it has more files, or bytes, than a tree may have")
        more = -(-size // _BLOCK) * _BLOCK + _BLOCK
        self._space.hold(self._taken + 2 * more)
        self._taken += more
        self._space.hold(self._taken)

    def _malformed(self, problem: str) -> TreeUnusable:
        return TreeUnusable(tree=self._tree, problem=f"the process that reads it wrote nonsense: {problem}")


class _Records:
    """The fields of one record; `struct.error` where it ends early."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read

    def name(self) -> bytes:
        """Read a name, or another text."""
        (length,) = walk.NAME.unpack(self._read(walk.NAME.size))
        return self._exactly(length)

    def attributes(self) -> tuple[int, int, int]:
        mode, mtime_ns, size = walk.ATTRIBUTES.unpack(self._read(walk.ATTRIBUTES.size))
        return mode, mtime_ns, size

    def piece(self) -> bytes:
        (length,) = struct.unpack("<I", self._read(4))
        if length > walk.PIECE:
            raise struct.error("too long")
        return self._exactly(length)

    def _exactly(self, length: int) -> bytes:
        data = self._read(length)
        if len(data) != length:
            raise struct.error("too short")
        return data


def _finish(fd: int, mode: int, mtime_ns: int) -> None:
    os.fchmod(fd, mode & _PERMISSIONS)
    os.utime(fd, ns=(_time(mtime_ns), _time(mtime_ns)))


def _time(mtime_ns: int) -> int:
    return min(max(mtime_ns, 0), LATEST_NS)


def _printable(path: bytes) -> str:
    return ascii(posixpath.normpath(os.fsdecode(path)))[1:-1][:200]
