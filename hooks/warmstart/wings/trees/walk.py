"""Read a tree with the rights of the user who asked for its copy, and hand it to root piece by piece.

Runs as that user, in a worker. `walk` fills a file of root's with records, again and again, which `trees.stage` turns
into files of root's own. Links are not followed, other mounts are neither entered
nor asked for anything: one may hang. What the user has no right to read is left out and named, and so is what a
squashfs of ours cannot have of a file. A file or directory that changes while it is read, or that cannot be read now,
ends the walk: the copy would be of no one moment. A tree that is copied for many is whole, or not copied (`_Sharing`),
but for what only package managers read (`is_managers_own`).

A record is a kind, of one byte, and what belongs to it:

    D  name, mode, mtime      a directory; what follows lies in it, up to its U
    U                         the end of that directory
    F  name, mode, mtime, size
    B  length, bytes          of the last F
    L  name, mtime, target    a symbolic link
    X  path, reason           left out, or something of it is
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

from warmstart.caches.store.layout import LATEST_NS
from warmstart.errors import ResourceError
from warmstart.host.files import mount_id, write_all
from warmstart.host.trusted import unknown_group
from warmstart.host.untrusted import MOUNT, SPECIAL, UNREADABLE, TurnedAway, open_directory, open_file
from warmstart.wings.trees.current import TreeUnusable

PIECE = 1 << 20  # bytes of a file that one record has at most
CHUNK = 64 << 20  # bytes after which they are taken,
CHUNK_S = 10.0  # or seconds, whichever comes first
DEEPEST = 64  # directories
MOST_NAMES = 255  # bytes of a name
FEW_LINKS = 20  # that lead out of an environment, as its Python does, and are not told
_NO_RIGHT = (errno.EACCES, errno.EPERM)
_LONGEST_SHOWN = 200  # characters of a path in a message
_TO_READ, _TO_ENTER = 0o4, 0o5  # permissions: to read a file, to list a directory and open what is in it

DIRECTORY, UP, FILE, BYTES, LINK, LEFT_OUT, END = (b"D", b"U", b"F", b"B", b"L", b"X", b"E")
NAME = struct.Struct("<H")
ATTRIBUTES = struct.Struct("<HqQ")  # mode, mtime in nanoseconds, size


class TreeRefused(ResourceError):
    """Nothing of a tree is copied while it stays as it is: it is too large, or a rule names it for many.

    Then it has a file that not everybody may read, or that others could change.
    """

    code = "tree-refused"
    template = "tree {tree}: {problem}"
    hint = (
        "raise trees.max_size or trees.keep if it is too large; else its owner can chmod -R go-w,a+rX, and setfacl -Rb "
        "where it has lists, or take it out of the rule's trees"
    )


class Bounds(NamedTuple):
    """What one tree may have."""

    size: int  # bytes of all files
    files: int  # names


def walk(tree: str, bounds: Bounds, owners: list[int] | None, out: int, go_on: int) -> Iterator[bool]:
    """Fill the file `out` with records from its beginning, and yield whether there are more, again and again.

    What was taken of them is told by a byte in the pipe `go_on`. For a copy for many, `owners` are the uids whose files
    the tree may have. Raises `TreeUnusable`, or `TreeRefused`.
    """
    records, has_more = _records(tree, bounds, owners), True
    while has_more:
        has_more = _write(records, out)
        yield has_more
        os.read(go_on, 1)


def _records(tree: str, bounds: Bounds, owners: list[int] | None) -> Iterator[bytes]:
    """Open a tree by its path without links; return its records."""
    try:
        fd = os.open(tree, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        if os.readlink(f"/proc/self/fd/{fd}") != tree:  # somebody has put a link on the way
            raise TreeUnusable(tree=tree, problem="its path has become another's")
        sharing = None if owners is None else _Sharing(tree, {0, *owners}, os.fstat(fd))
        if sharing:
            sharing.check("", os.fstat(fd), fd)
    except OSError as error:
        raise TreeUnusable(tree=tree, problem=error.strerror or str(error)) from error
    return _Walk(tree, bounds, mount_id(fd), sharing).records(fd)


def _write(records: Iterator[bytes], out: int) -> bool:
    """Write the next records into the file `out`, from its beginning; return whether there are more."""
    os.lseek(out, 0, os.SEEK_SET)
    os.ftruncate(out, 0)
    written, began = 0, time.monotonic()
    for record in records:
        write_all(out, record)
        written += len(record)
        if written >= CHUNK or time.monotonic() - began > CHUNK_S:
            return True
    return False


class _Sharing:
    """What must hold of everything in a tree that one user's process copies for many.

    Nobody but its owners can have written it, and whoever may list the top may read it: others are not shown the copy.
    Modes say both only where there is no access control list. POSIX ones are seen; NFSv4's are not.
    """

    def __init__(self, tree: str, owners: set[int], top: os.stat_result) -> None:
        self._tree = tree
        self._owners = owners
        self._top = top
        self._has_others = top.st_mode & _TO_ENTER == _TO_ENTER

    def check(self, path: str, status: os.stat_result, fd: int) -> None:
        """Raise `TreeRefused` if it does not; `fd` is open at `path`, -1 for a symbolic link."""
        if status.st_uid not in self._owners:
            raise self.refusal(path, f"it belongs to uid {status.st_uid}, whom the rule does not name")
        if fd < 0:
            return
        if status.st_mode & 0o022:
            raise self.refusal(path, "others than its owner may write it")
        if _has_acl(fd):
            raise self.refusal(path, "it has an access control list")
        if not self._is_as_open(status):
            raise self.refusal(path, "not all who may read the tree may read it")

    def _is_as_open(self, status: os.stat_result) -> bool:
        """Return whether a file or directory is as readable as the top: for all, or for its group."""
        needed = _TO_ENTER if stat.S_ISDIR(status.st_mode) else _TO_READ
        if (status.st_mode >> 3) & needed != needed:  # members of its group have these bits alone
            return False
        if status.st_mode & needed == needed:
            return True
        same = (status.st_uid, status.st_gid) == (self._top.st_uid, self._top.st_gid)
        return same and not self._has_others

    def refusal(self, path: str, problem: str) -> TreeRefused:
        """Return the error that names a path in the tree."""
        shown = ascii(path)[1:-1][-_LONGEST_SHOWN:] or "its top"
        return TreeRefused(tree=self._tree, problem=f"{shown}: {problem}; so no copy is made of it")


def _has_acl(fd: int) -> bool:
    try:
        os.getxattr(fd, "system.posix_acl_access")
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.EOPNOTSUPP):
            return False
        raise
    return True


class _Walk:
    def __init__(self, tree: str, bounds: Bounds, mount: str, sharing: _Sharing | None) -> None:
        self._tree = tree
        self._bounds = bounds
        self._mount = mount
        self._sharing = sharing
        self._files = 0
        self._size = 0
        self._outward = 0  # links that lead out of the tree
        self._untold = b""  # records of the first of them

    def records(self, fd: int) -> Iterator[bytes]:
        """Yield the records of the tree whose top is `fd`, which is closed at the end."""
        yield from self._directory(fd, "", 0)
        yield END

    def _directory(self, fd: int, path: str, depth: int) -> Iterator[bytes]:
        try:
            before = _state(os.fstat(fd))
            with os.scandir(fd) as items:
                for item in items:
                    self._count(item.name)
                    below = f"{path}{item.name}"
                    try:
                        yield from self._item(item, fd, below, depth)
                    except TreeRefused:  # before a record of it; what a package manager keeps may be missing
                        if item.is_dir(follow_symlinks=False) or not is_managers_own(below):
                            raise
            if _state(os.fstat(fd)) != before:  # a name may be missing, or there twice
                raise self._changed(path)
        except OSError as error:
            raise self._changed(path, error) from error
        finally:
            os.close(fd)

    def _count(self, name: str) -> None:
        self._files += 1
        if self._files > self._bounds.files:
            raise TreeRefused(tree=self._tree, problem=f"it has more than {self._bounds.files} files and directories")
        if len(os.fsencode(name)) > MOST_NAMES:
            raise TreeRefused(tree=self._tree, problem="it has a name of more than 255 bytes")

    def _item(self, item: os.DirEntry[str], parent: int, path: str, depth: int) -> Iterator[bytes]:
        """Yield the records of one name. The directory says of what kind it is: to ask the file itself may hang."""
        is_directory = item.is_dir(follow_symlinks=False)
        if is_directory and depth == DEEPEST:
            problem = f"{path!a:.200}: more than {DEEPEST} directories lie in each other"
            raise TreeRefused(tree=self._tree, problem=problem)
        try:
            if item.is_symlink():
                yield self._link(item.name, parent, path)
                return
            if is_directory:
                fd = open_directory(item.name, parent, self._mount)
            elif item.is_file(follow_symlinks=False):
                fd = open_file(item.name, parent, self._mount, None)
            else:
                raise TurnedAway(SPECIAL)
        except TurnedAway as turned:
            if not _stays_out(turned):
                raise self._changed(path, turned.__cause__) from turned
            reason = turned.reason + (unknown_group(f"{self._tree}/{path}") if turned.reason == UNREADABLE else "")
            if self._sharing:
                raise self._sharing.refusal(path, reason) from turned
            if is_directory and turned.reason == UNREADABLE and _may_enter(item.name, parent):
                problem = f"{path!a:.200}: you may enter it, but not list it, so what is in it cannot be copied"
                raise TreeUnusable(tree=self._tree, problem=problem) from turned
            yield _lacks(path, reason)
            return
        self._check(path, fd)
        yield _lost(path, fd)
        if is_directory:
            yield DIRECTORY + _name(item.name) + _attributes(os.fstat(fd), 0)
            yield from self._directory(fd, f"{path}/", depth + 1)
            yield UP
        else:
            yield from self._file(fd, item.name, path)

    def _check(self, path: str, fd: int) -> None:
        """Raise `TreeRefused` if a file or directory may not be copied for many; then `fd` is closed."""
        if self._sharing:
            try:
                self._sharing.check(path, os.fstat(fd), fd)
            except BaseException:
                os.close(fd)
                raise

    def _link(self, name: str, parent: int, path: str) -> bytes:
        try:
            status, target = os.lstat(name, dir_fd=parent), os.readlink(name, dir_fd=parent)
        except OSError as error:
            raise TurnedAway(UNREADABLE) from error
        if self._sharing:
            self._sharing.check(path, status, -1)
        told = b""
        there = os.path.normpath(os.path.join(self._tree, os.path.dirname(path), target))
        if not f"{there}/".startswith(f"{self._tree}/"):
            self._outward += 1
            self._untold += _lacks(path, "a link that leads out of the tree")
            if self._outward > FEW_LINKS:
                told, self._untold = self._untold, b""
        return told + LINK + _name(name) + _attributes(status, 0) + _name(target)

    def _file(self, fd: int, name: str, path: str) -> Iterator[bytes]:
        try:
            status = os.fstat(fd)
            self._size += status.st_size
            if self._size > self._bounds.size:
                raise TreeRefused(tree=self._tree, problem=f"it has more than {self._bounds.size} bytes")
            yield FILE + _name(name) + _attributes(status, status.st_size)
            left = status.st_size
            while left:
                piece = os.read(fd, min(left, PIECE))
                if not piece:
                    raise self._changed(path)
                left -= len(piece)
                yield BYTES + struct.pack("<I", len(piece)) + piece
            if _state(os.fstat(fd)) != _state(status):
                raise self._changed(path)
        except OSError as error:
            raise self._changed(path, error) from error
        finally:
            os.close(fd)

    def _changed(self, path: str, error: object = None) -> TreeUnusable:
        how = f"cannot be read now: {error.strerror}" if isinstance(error, OSError) else "changed while it was read"
        return TreeUnusable(tree=self._tree, problem=f"{path or '.'!a:.200} {how}")


def _state(status: os.stat_result) -> tuple[int, ...]:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def is_managers_own(path: str) -> bool:
    """Return whether package managers alone read a file in a tree.

    uv makes its lock for all to write, and pixi what it knows of packages for their owner to read, whatever the umask.
    """
    directory, _, name = path.rpartition("/")
    return name == ".lock" or (f"/{directory}".endswith("/conda-meta") and name.endswith(".json"))


def _stays_out(turned: TurnedAway) -> bool:
    """Return whether the copy is whole without this name; otherwise the tree changed, or its file system failed."""
    cause = turned.__cause__
    return turned.reason in (MOUNT, SPECIAL) or (isinstance(cause, OSError) and cause.errno in _NO_RIGHT)


def _may_enter(name: str, parent: int) -> bool:
    return os.access(name, os.X_OK, dir_fd=parent, follow_symlinks=False)


def _lost(path: str, fd: int) -> bytes:
    """Return the records that say what the copy of an open file or directory cannot have."""
    records = b""
    if not 0 <= os.fstat(fd).st_mtime_ns <= LATEST_NS:
        records += _lacks(path, "time before 1970 or after 2106")
    with suppress(OSError):  # EOPNOTSUPP: the file system has none
        if any(name.startswith("user.") for name in os.listxattr(fd)):  # others are the system's
            records += _lacks(path, "extended attributes")
    return records


def _lacks(path: str, what: str) -> bytes:
    return LEFT_OUT + _name(path) + _name(what)


def _name(name: str) -> bytes:
    data = os.fsencode(name)[-0xFFFF:]
    return NAME.pack(len(data)) + data


def _attributes(status: os.stat_result, size: int) -> bytes:
    return ATTRIBUTES.pack(stat.S_IMODE(status.st_mode), status.st_mtime_ns, size)
