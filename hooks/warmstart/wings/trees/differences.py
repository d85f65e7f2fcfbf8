"""Compare a tree with its copy, name by name, with the rights of the user whose copy it is. Runs as that user.

This finds what the markers of `trees.current` do not show: a file that was edited in place, one that came or went below
a package, another link or mode. No byte of a file is read. What was left out of the copy, other mounts, and
`__pycache__`, which programs write and which follows from the sources, do not count.

The tree's file system may hang or be slow, so `begin`, and then `more` until it is over, each end soon.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from typing import NamedTuple

from warmstart.host.files import DIRECTORY, mount_id
from warmstart.host.untrusted import MOUNT, UNREADABLE, TurnedAway, open_directory, open_file
from warmstart.store.manifest import LATEST_NS
from warmstart.wings.trees.current import TreeUnusable
from warmstart.wings.trees.walk import is_managers_own

RATE = 500  # names of a tree in a second; a file server does not notice
CHUNK_S = 10.0  # after which `more` returns
MOST_EXAMPLES = 20
_AT_ONCE_S = 0.1  # of work ahead of the rate before it waits
_CACHES = "__pycache__"
_NO_RIGHT = (errno.EACCES, errno.EPERM)
ADDED, REMOVED, KIND, SIZE, TIME, MODE, TARGET = ("added", "removed", "kind", "size", "time", "mode", "target")


class Differences(NamedTuple):
    """What a comparison has found until now."""

    names: int  # of the tree, that were looked at
    changed: int
    examples: list[tuple[str, str]]  # at most 20: path in printable ASCII, what is another
    is_over: bool


_comparisons: list[_Comparison] = []  # of this worker, which compares one tree


def begin(tree: str, copy: int, most: int) -> None:
    """Open a tree by its path without links; `copy` is a descriptor of its copy. It ends after `most` names.

    Raises `TreeUnusable`.
    """
    try:
        fd = os.open(tree, DIRECTORY)
    except OSError as error:
        raise TreeUnusable(tree=tree, problem=error.strerror or str(error)) from error
    _comparisons[:] = [_Comparison(fd, os.dup(copy), most)]


def more() -> Differences:
    """Go on for some seconds, at a low pace; return what was found until now.

    Raises `OSError` where a file system fails: then nothing is known.
    """
    return _comparisons[0].more()


class _Comparison:
    def __init__(self, tree: int, copy: int, most: int) -> None:
        self._mount = mount_id(tree)
        self._most = most
        self._names = self._changed = 0
        self._examples: list[tuple[str, str]] = []
        self._steps = self._directory(tree, copy, "")

    def more(self) -> Differences:
        began, looked = time.monotonic(), self._names
        for _ in self._steps:
            took = time.monotonic() - began
            if self._names >= self._most:
                break
            if took > CHUNK_S:
                return self._found(is_over=False)
            ahead = (self._names - looked) / RATE - took
            if ahead > _AT_ONCE_S:
                time.sleep(ahead)
        return self._found(is_over=True)

    def _found(self, *, is_over: bool) -> Differences:
        return Differences(self._names, self._changed, self._examples, is_over)

    def _directory(self, tree: int, copy: int, path: str) -> Iterator[None]:
        """Compare two directories, which are closed at the end; yield after each name of the tree."""
        try:
            with os.scandir(copy) as items:
                left = {item.name for item in items} - {_CACHES}
            with os.scandir(tree) as items:
                for item in items:
                    self._names += 1
                    below = f"{path}{item.name}"
                    if item.name in left:
                        left.discard(item.name)
                        yield from self._both(item, tree, copy, below)
                    elif item.name != _CACHES and not is_managers_own(below) and self._would_be_copied(item, tree):
                        self._note(below, ADDED)
                    yield
            for name in sorted(left):
                self._note(f"{path}{name}", REMOVED)
        finally:
            os.close(tree)
            os.close(copy)

    def _both(self, item: os.DirEntry[str], tree: int, copy: int, path: str) -> Iterator[None]:
        there = os.stat(item.name, dir_fd=copy, follow_symlinks=False)
        if not item.is_dir(follow_symlinks=False):
            self._files(item.name, tree, copy, path, there)
        elif not stat.S_ISDIR(there.st_mode):
            self._note(path, KIND)
        elif (below := self._opened(item.name, tree, path)) >= 0:
            if _mode(os.fstat(below)) != _mode(there):
                self._note(path, MODE)
            yield from self._directory(below, os.open(item.name, DIRECTORY, dir_fd=copy), f"{path}/")

    def _files(self, name: str, tree: int, copy: int, path: str, there: os.stat_result) -> None:
        try:
            here = os.lstat(name, dir_fd=tree)
        except FileNotFoundError:
            self._note(path, REMOVED)
            return
        if stat.S_IFMT(here.st_mode) != stat.S_IFMT(there.st_mode):
            self._note(path, KIND)
        elif stat.S_ISLNK(here.st_mode):
            if os.readlink(name, dir_fd=tree) != os.readlink(name, dir_fd=copy):
                self._note(path, TARGET)
        elif here.st_size != there.st_size:
            self._note(path, SIZE)
        elif _seconds(here) != _seconds(there):
            self._note(path, TIME)
        elif _mode(here) != _mode(there):
            self._note(path, MODE)

    def _opened(self, name: str, tree: int, path: str) -> int:
        """Return a descriptor of a directory of the tree, -1 if there is nothing to compare below it."""
        try:
            return open_directory(name, tree, self._mount)
        except TurnedAway as turned:
            cause = turned.__cause__
            if turned.reason == UNREADABLE and isinstance(cause, OSError) and cause.errno not in _NO_RIGHT:
                raise cause from turned
            if turned.reason != MOUNT:
                self._note(path, UNREADABLE if turned.reason == UNREADABLE else REMOVED)
            return -1

    def _would_be_copied(self, item: os.DirEntry[str], tree: int) -> bool:
        """Return whether a name that the copy lacks is new, and not one that is always left out."""
        try:
            if item.is_dir(follow_symlinks=False):
                os.close(open_directory(item.name, tree, self._mount))
            elif not item.is_symlink():
                os.close(open_file(item.name, tree, self._mount, None))
        except TurnedAway:
            return False
        return True

    def _note(self, path: str, what: str) -> None:
        self._changed += 1
        if len(self._examples) < MOST_EXAMPLES:
            self._examples.append((ascii(path)[1:-1][:200], what))


def _mode(status: os.stat_result) -> int:
    return status.st_mode & 0o777  # a copy has neither setuid nor setgid


def _seconds(status: os.stat_result) -> int:
    """Return the time of the last change as a squashfs has it."""
    return min(max(status.st_mtime_ns, 0), LATEST_NS) // 1_000_000_000
