"""Read a tree with the rights of the user who asked for its copy, and hand it to root piece by piece.

Runs as that user, in a worker: `begin`, then `more` until it returns False. Each call fills a file of root's with
records, which `trees.stage` turns into files of root's own. Links are not followed, other mounts are not entered.
What the user cannot read is left out and named. A file that changes while it is read ends the walk: the copy would be
of no one moment.

A record is a kind, of one byte, and what belongs to it:

    D  name, mode, mtime      a directory; what follows lies in it, up to its U
    U                         the end of that directory
    F  name, mode, mtime, size
    B  length, bytes          of the last F
    L  name, mtime, target    a symbolic link
    X  name, reason           left out
    E                         the end of the tree
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from warmstart.errors import ResourceError
from warmstart.host.files import mount_id, write_all
from warmstart.host.untrusted import SPECIAL, UNREADABLE, TurnedAway, open_any_file, open_directory
from warmstart.trees.current import TreeUnusable

PIECE = 1 << 20  # bytes of a file that one record has at most
CHUNK = 64 << 20  # bytes after which `more` returns,
CHUNK_S = 10.0  # or seconds, whichever comes first
DEEPEST = 64  # directories
MOST_NAMES = 255  # bytes of a name
CHANGED = "{path} changed while it was read"

DIRECTORY, UP, FILE, BYTES, LINK, LEFT_OUT, END = (b"D", b"U", b"F", b"B", b"L", b"X", b"E")
NAME = struct.Struct("<H")
ATTRIBUTES = struct.Struct("<HqQ")  # mode, mtime in nanoseconds, size


class TreeChanged(ResourceError):
    """A tree changed while it was packed."""

    code = "tree-changed"
    template = "tree {tree}: {problem}"
    hint = "nothing to do: it is packed when it stays as it is"


class TreeTooLarge(ResourceError):
    """A tree has more than the policy lets one tree have."""

    code = "tree-too-large"
    template = "tree {tree}: {problem}"
    hint = "raise trees.max_size, trees.max_files or trees.keep, or name a smaller tree"


class Bounds(NamedTuple):
    """What one tree may have."""

    size: int  # bytes of all files
    files: int  # names


_walks: list[Iterator[bytes]] = []  # of this worker, which walks one tree


def begin(tree: str, bounds: Bounds) -> None:
    """Open a tree by its path without links. Raises `TreeUnusable`."""
    try:
        fd = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise TreeUnusable(tree=tree, problem=error.strerror or str(error)) from error
    _walks[:] = [_Walk(tree, bounds, mount_id(fd)).records(fd)]


def more(out: int) -> bool:
    """Write the next records into the file `out`, from its beginning; return whether there are more.

    Raises `TreeChanged` or `TreeTooLarge`.
    """
    os.lseek(out, 0, os.SEEK_SET)
    os.ftruncate(out, 0)
    written, began = 0, time.monotonic()
    for record in _walks[0]:
        write_all(out, record)
        written += len(record)
        if written >= CHUNK or time.monotonic() - began > CHUNK_S:
            return True
    return False


class _Walk:
    def __init__(self, tree: str, bounds: Bounds, mount: str) -> None:
        self._tree = tree
        self._bounds = bounds
        self._mount = mount
        self._files = 0
        self._size = 0

    def records(self, fd: int) -> Iterator[bytes]:
        """Yield the records of the tree whose top is `fd`, which is closed at the end."""
        yield from self._directory(fd, "", 0)
        yield END

    def _directory(self, fd: int, path: str, depth: int) -> Iterator[bytes]:
        try:
            with os.scandir(fd) as items:
                for item in items:
                    self._count(item.name)
                    yield from self._item(item, fd, f"{path}{item.name}", depth)
        finally:
            os.close(fd)

    def _count(self, name: str) -> None:
        self._files += 1
        if self._files > self._bounds.files:
            raise TreeTooLarge(tree=self._tree, problem=f"it has more than {self._bounds.files} files and directories")
        if len(os.fsencode(name)) > MOST_NAMES:
            raise TreeTooLarge(tree=self._tree, problem="it has a name of more than 255 bytes")

    def _item(self, item: os.DirEntry[str], parent: int, path: str, depth: int) -> Iterator[bytes]:
        try:
            status = item.stat(follow_symlinks=False)
            if stat.S_ISDIR(status.st_mode):
                if depth == DEEPEST:
                    problem = f"{path}: more than {DEEPEST} directories lie in each other"
                    raise TreeTooLarge(tree=self._tree, problem=problem)
                below = open_directory(item.name, parent, self._mount)
                yield DIRECTORY + _name(item.name) + _attributes(status, 0)
                yield from self._directory(below, f"{path}/", depth + 1)
                yield UP
            elif stat.S_ISLNK(status.st_mode):
                target = _name(os.readlink(item.name, dir_fd=parent))
                yield LINK + _name(item.name) + _attributes(status, 0) + target
            elif stat.S_ISREG(status.st_mode):
                yield from self._file(item.name, parent, path)
            else:
                raise TurnedAway(SPECIAL)
        except TurnedAway as turned:
            yield LEFT_OUT + _name(path) + _name(turned.reason)
        except OSError as error:
            if error.errno == errno.ENOENT:
                raise TreeChanged(tree=self._tree, problem=CHANGED.format(path=path)) from error
            yield LEFT_OUT + _name(path) + _name(UNREADABLE)

    def _file(self, name: str, parent: int, path: str) -> Iterator[bytes]:
        fd = open_any_file(name, parent, self._mount)
        try:
            status = os.fstat(fd)
            self._size += status.st_size
            if self._size > self._bounds.size:
                raise TreeTooLarge(tree=self._tree, problem=f"it has more than {self._bounds.size} bytes")
            yield FILE + _name(name) + _attributes(status, status.st_size)
            left = status.st_size
            while left:
                piece = self._read(fd, min(left, PIECE), path)
                left -= len(piece)
                yield BYTES + struct.pack("<I", len(piece)) + piece
            if _state(os.fstat(fd)) != _state(status):
                raise TreeChanged(tree=self._tree, problem=CHANGED.format(path=path))
        finally:
            os.close(fd)

    def _read(self, fd: int, most: int, path: str) -> bytes:
        piece = b""
        with suppress(OSError):  # EIO: the tree cannot be copied now
            piece = os.read(fd, most)
        if not piece:
            raise TreeChanged(tree=self._tree, problem=CHANGED.format(path=path))
        return piece


def _state(status: os.stat_result) -> tuple[int, ...]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _name(name: str) -> bytes:
    data = os.fsencode(name)[-0xFFFF:]
    return NAME.pack(len(data)) + data


def _attributes(status: os.stat_result, size: int) -> bytes:
    return ATTRIBUTES.pack(stat.S_IMODE(status.st_mode), status.st_mtime_ns, size)
