"""The directory of one import: private, gone afterwards, and found again when the importing hook was killed.

    <workspace>/<node>/           root's
        import.<run>.<random>/    root and the account's group, 0710; locked (flock) for as long as its hook lives
            disk                  root, 0600: a file system of the size that an import may take (sized.py)
            <random>/             it, mounted; the import account, 0700: HOME, TMPDIR, layers, the result

The inner name is random and the outer directory can't be listed: two imports at once have the same uid, and
neither finds the other's files. Everybody reads both in /proc/self/mountinfo, and whoever reaches a directory can hold
its file system with an O_PATH descriptor: so nobody else does, and the disk is emptied when it goes. Where no file
system can be mounted, the directory is measured while programs run (measured.py).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from warmstart.errors import NodeError, ResourceError, UserError
from warmstart.host import files
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import DIRECTORY, NODE_FAULTS, ensure_dir, ensure_path, opened_dir, remove_tree
from warmstart.host.identity import Identity
from warmstart.images import sized
from warmstart.images.sized import Caps

PREFIX = "import."
REMOVAL_S = 60.0


class ScratchUnusable(ResourceError):
    """No room, or no permission, for an import on this node."""

    code = "import-no-room"
    template = "no room to import an image below {path}: {problem}"
    hint = "free space where paths.workspace is: an import needs the image three times, unpacked once"


class ScratchBroken(NodeError):
    """The file system that imports work on is read-only or failing."""

    code = "import-disk-broken"
    template = "cannot import below {path}: {problem}"
    hint = "repair or remount the file system, then resume the node"


class ImageTooLarge(UserError):
    """Its layers, what they expand to and the result take more than the policy gives an import."""

    code = "image-too-large"
    template = "image {image} is too large: its import takes more than {size} bytes or {files} files on a node"
    hint = "use a smaller image, or ask for images.max_size or images.max_files to be raised"

    @classmethod
    def of(cls, image: str, caps: Caps) -> ImageTooLarge:
        """Return the error for an image that met its caps."""
        return cls(image=image, size=caps.size, files=caps.files)


class Scratch(NamedTuple):
    """What an importer works in; `is_sized`: a file system holds the caps, else whoever starts programs has to."""

    path: str  # absolute; the import account can reach it
    fd: int
    caps: Caps
    is_sized: bool = False

    def full(self, image: str, problem: str) -> UserError | ResourceError:
        """Return the error for a program that found no space: the image's matter, or that of this node's disk."""
        return ImageTooLarge.of(image, self.caps) if self.is_sized else ScratchUnusable(path=self.path, problem=problem)

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn an `OSError` in here into an error: a full disk below its file system looks like a failing one."""
        try:
            with disk_errors(self.path):
                yield
        except ScratchBroken as error:
            if not self.is_sized:
                raise
            raise ScratchUnusable(**error.fields) from error

    def settle(self) -> None:
        """Have all that was written on the disk, or say that the disk did not take it."""
        if self.is_sized:
            with self.errors():
                sized.sync_filesystem(self.fd)


@contextmanager
def opened(workspace: str, node: str, run_id: str, identity: Identity, caps: Caps) -> Iterator[Scratch]:
    """Make a scratch directory for `identity`, and remove it with all that is in it."""
    parent = os.path.join(workspace, node)
    with disk_errors(parent):
        ensure_path(workspace, 0o755)
        with opened_dir(workspace) as root:
            ensure_dir(node, 0o755, root)
        parent_fd = os.open(parent, DIRECTORY)
    try:
        with disk_errors(parent):
            remove_abandoned(parent_fd)
            name, outer = _make_locked(parent_fd, run_id, identity.gid)
        try:
            with disk_errors(parent):
                scratch = _make_inner(f"{parent}/{name}", outer, identity, caps)
            try:
                yield scratch
            finally:
                os.close(scratch.fd)
        finally:
            # What can't be removed now is not this import's failure: the next one, or maintenance, removes it.
            with suppress(OSError):
                _remove(parent_fd, name, after(REMOVAL_S))
            os.close(outer)
    finally:
        os.close(parent_fd)


def remove_left(node: int, run_id: str, deadline: Deadline) -> None:
    """Remove what imports of a hook that was killed left in `<workspace>/<node>/`; no import of that run is alive."""
    for name in os.listdir(node):
        if name.startswith(f"{PREFIX}{run_id}."):
            _remove(node, name, deadline)


def _remove(parent: int, name: str, deadline: Deadline) -> None:
    """Remove a scratch directory, and free what its file system takes even if somebody still holds that."""
    disk = -1
    with suppress(OSError), opened_dir(name, parent) as outer:
        disk = os.open(sized.FILE, os.O_WRONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=outer)
    try:
        remove_tree(parent, name, deadline)
    finally:
        if disk >= 0:
            os.ftruncate(disk, 0)
            os.close(disk)


def _make_locked(parent: int, run_id: str, gid: int) -> tuple[str, int]:
    """Make the outer directory and lock it; another hook may take it for abandoned until it is locked."""
    while True:
        name = f"{PREFIX}{run_id}.{os.urandom(8).hex()}"
        os.mkdir(name, 0o700, dir_fd=parent)
        try:
            fd = os.open(name, DIRECTORY, dir_fd=parent)
        except FileNotFoundError:
            continue
        if files.try_take(fd) and os.fstat(fd).st_nlink:
            os.fchown(fd, -1, gid)
            os.fchmod(fd, 0o710)
            return name, fd
        os.close(fd)


def _make_inner(path: str, outer: int, identity: Identity, caps: Caps) -> Scratch:
    name = os.urandom(16).hex()
    os.mkdir(name, 0o700, dir_fd=outer)
    is_sized = os.geteuid() == 0 and sized.mounted(outer, path, name, caps)
    fd = os.open(name, DIRECTORY, dir_fd=outer)
    if is_sized:
        os.rmdir("lost+found", dir_fd=fd)
        os.fchmod(fd, 0o700)
    os.fchown(fd, identity.uid, identity.gid)
    return Scratch(f"{path}/{name}", fd, caps, is_sized)


def remove_abandoned(parent: int) -> None:
    """Remove what imports of dead hooks left in a node's open workspace directory."""
    deadline: Deadline = after(REMOVAL_S)
    for name in os.listdir(parent):
        if not name.startswith(PREFIX):
            continue
        with suppress(OSError):
            fd = os.open(name, DIRECTORY, dir_fd=parent)
            try:
                if files.try_take(fd):
                    _remove(parent, name, deadline)
            finally:
                os.close(fd)


@contextmanager
def disk_errors(path: str) -> Iterator[None]:
    """Turn an `OSError` of this node's disk into `ScratchUnusable` or `ScratchBroken`."""
    try:
        yield
    except OSError as error:
        kind = ScratchBroken if error.errno in NODE_FAULTS else ScratchUnusable
        raise kind(path=path, problem=error.strerror or str(error)) from error
