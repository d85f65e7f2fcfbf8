"""The private scratch directory of one import: its creation, size limit and removal. Runs as root.

    <workspace>/                  root
        import.<run>.<random>/    root and the import account's group, 0710; locked (flock) while its program lives
            disk                  root, 0600: an ext4 file system with the size that an import may take
            <random>/             the import account, 0700: the mounted disk with HOME, TMPDIR, layers and the result

The inner name is random and the outer directory cannot be listed, so of two concurrent imports, which have the same
uid, neither finds the other's files. /proc/self/mountinfo shows both names to everybody but the imports' programs,
which run in a mount namespace without the other imports (`base.run`). Whoever reaches a directory can pin its file
system with an O_PATH descriptor. So the disk is emptied when the import ends.

The disk is a sparse file on a loop device, mounted `nosuid,nodev`; creating it takes 25 ms and 1 MiB. An import that is
too large gets ENOSPC and affects nobody else, and removing one file removes millions. The file system has no journal
and no barriers, since it lives as long as the import. If the disk below it is full, writes fail later with EIO, so
`Scratch.sync` checks for that. Without loop devices, and for a user's own import, `Watch` measures the directory while
programs run. That limit is weaker: it notices an excess only after it has been written.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
import time

from warmstart.errors import ResourceError, UserError, WarmstartError
from warmstart.host import files
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import DIRECTORY, NODE_FAULTS, FileSystemBroken, Untrusted, ensure_path, opened_dir
from warmstart.host.identity import Identity
from warmstart.lean import Iterator, NamedTuple, contextmanager, suppress

PREFIX = "import."
REMOVAL_S = 60.0
MKE2FS = "/sbin/mke2fs"
DISK = "disk"
MAKING_S = 30.0
FILESYSTEM_BLOCK = 4096
INODE = 256
# Bytes for superblocks, bitmaps and the reserve, in addition to the inode tables.
OVERHEAD = 16 << 20
FEATURES = "^has_journal,^resize_inode"
OPTIONS = "noinit_itable,barrier=0,errors=continue"
EVERY_S = 1.0
LOOK_SHARE = 9  # measuring may take at most about one part in this many of the time
DEEPEST = 200  # nested directories: no image has so many, and each level takes a descriptor
STAT_BLOCK = 512  # bytes in st_blocks
# EXT4_IOC_SHUTDOWN, which is FS_IOC_SHUTDOWN, and EXT4_GOING_FLAGS_NOLOGFLUSH (fs/ext4/ext4.h).
_SHUTDOWN, _DROP = 0x8004587D, 2


class ScratchUnusable(ResourceError):
    """An import has no space, or no permission, on this node, or no directory of its user's alone."""

    code = "scratch-unusable"
    template = "no image can be imported below {path}: {problem}"
    hint = "free space where paths.workspace is: it takes the image's layers and the result, with enroot also unpacked"


class WorkspaceNotRoots(ResourceError):
    """Somebody else has made a directory of the workspaces, or could rename what root makes there."""

    code = "workspace-not-roots"
    template = "nothing is made in {path}, which is not root's: it {problem}"
    hint = "look whose it is and remove it; at boot tmpfiles.d/warmstart.conf makes it root's (docs/threats.md, row 34)"

    @classmethod
    def of(cls, path: str, error: OSError) -> WorkspaceNotRoots:
        """Return the error for a file or directory at `path`, or where the error says."""
        name = files.file_of(error)
        problem = error.strerror if isinstance(error, Untrusted) else "is a link, or no directory"
        return cls(path=name if os.path.isabs(name) else path, problem=problem)


class ImageTooLarge(UserError):
    """The image's layers, their unpacked files and the result exceed what the policy allows for an import."""

    code = "image-too-large"
    template = "image {image} is too large: its import takes more than {size} bytes or {files} files on a node"
    hint = "use a smaller image, or ask for images.max_size to be raised"

    @classmethod
    def of(cls, image: str, caps: Caps) -> ImageTooLarge:
        """Return the error for an image that exceeds its caps."""
        return cls(image=image, size=caps.size, files=caps.files)


class Exceeded(Exception):
    """The directory holds more than its caps allow."""


MOST_FILES = 1_000_000


class Caps(NamedTuple):
    """What one import may take on a node at any one time."""

    size: int  # bytes
    files: int = MOST_FILES  # with directories; also entries of all its layers


class Scratch(NamedTuple):
    """The directory that an importer works in."""

    path: str  # absolute; the import account can reach it
    fd: int
    caps: Caps
    is_loop_filesystem: bool = False  # its size enforces the caps; otherwise `Watch` does

    def used(self) -> int:
        """Return the bytes that the import has on its own file system; 0 if it has none."""
        if not self.is_loop_filesystem:
            return 0
        disk = os.fstatvfs(self.fd)
        return (disk.f_blocks - disk.f_bfree) * disk.f_frsize

    def full(self, image: str, problem: str) -> UserError | ResourceError:
        """Return the error for a program that found no space: the image is too large, or this node's disk is full."""
        return (
            ImageTooLarge.of(image, self.caps)
            if self.is_loop_filesystem
            else ScratchUnusable(path=self.path, problem=problem)
        )

    @contextmanager
    def errors(self) -> Iterator[None]:
        """Turn an `OSError` into `ScratchUnusable` or `FileSystemBroken`.

        On a loop file system always into `ScratchUnusable`: a full disk below it looks like a failing one.
        """
        try:
            with disk_errors(self.path):
                yield
        except FileSystemBroken as error:
            if not self.is_loop_filesystem:
                raise
            raise ScratchUnusable(**error.fields) from error

    def sync(self, deadline: Deadline) -> None:
        """Write everything to the disk; raises what `errors` does if the disk below a loop file system failed.

        Everything, since a result can be wrong because of an unpacked file that was lost. A child does it, because
        syncfs(2) has no deadline.
        """
        if self.is_loop_filesystem:
            from warmstart.host.client import sync_in_child

            with self.errors():
                sync_in_child(self.fd, deadline)


@contextmanager
def opened(workspace: str, run_id: str, identity: Identity, caps: Caps) -> Iterator[Scratch]:
    """Create a scratch directory for `identity`, and remove it with its content after the `with`.

    Raises `ScratchUnusable` or `FileSystemBroken`.
    """
    with disk_errors(workspace):
        ensure_path(workspace, 0o755, sticky=False)
        parent_fd = os.open(workspace, DIRECTORY)
    try:
        with disk_errors(workspace):
            remove_abandoned(parent_fd)
            name, outer = _make_and_lock(parent_fd, run_id, identity.gid)
        try:
            with disk_errors(workspace):
                scratch = _make_inner(f"{workspace}/{name}", outer, identity, caps)
            try:
                yield scratch
            finally:
                os.close(scratch.fd)
        finally:
            # If removal fails, this import still succeeded. The next import, or maintenance, removes the rest.
            with suppress(OSError):
                _remove(parent_fd, name, after(REMOVAL_S))
            os.close(outer)
    finally:
        os.close(parent_fd)


def remove_abandoned(parent: int) -> None:
    """Remove the scratch of dead imports; `parent` is the workspace's descriptor."""
    deadline = after(REMOVAL_S)
    for name in os.listdir(parent):
        if not name.startswith(PREFIX):
            continue
        with suppress(OSError):
            fd = os.open(name, DIRECTORY, dir_fd=parent)
            try:
                if files.try_flock(fd):
                    _remove(parent, name, deadline)
            finally:
                os.close(fd)


def _remove(parent: int, name: str, deadline: Deadline) -> None:
    """Remove a scratch directory. A child does it: unmounting can take long where no shutdown was possible."""
    from warmstart.host.client import remove_in_child

    with freeing_disk(parent, name):
        remove_in_child(parent, name, deadline)


@contextmanager
def freeing_disk(parent: int, name: str) -> Iterator[None]:
    """Remove a directory with a loop file system in a `with` block. Frees the file's space even if a process holds it.

    Shuts the file system down first, which is mounted on a directory in it: unmounting would write all that is still in
    memory (docs/threats.md, row 25). Does nothing for directories without one.
    """
    disk = -1
    with suppress(OSError), opened_dir(name, parent) as outer:
        disk = os.open(DISK, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=outer)
        for below in os.listdir(outer):
            if below != DISK:
                with opened_dir(below, outer) as mounted:
                    _shut_down(mounted, disk)
    try:
        yield
    finally:
        if disk >= 0:
            os.ftruncate(disk, 0)
            os.close(disk)


def _shut_down(directory: int, disk: int) -> None:
    """Shut down the file system of a directory, if it is the one that is in the file `disk`, and no other."""
    from warmstart.host import loops

    if loops.is_attached(os.fstat(directory).st_dev, disk):
        fcntl.ioctl(directory, _SHUTDOWN, _DROP.to_bytes(4, sys.byteorder))


def _make_and_lock(parent: int, run_id: str, gid: int) -> tuple[str, int]:
    """Create the outer directory and lock it. Until it is locked, another hook may remove it as abandoned."""
    while True:
        name = f"{PREFIX}{run_id}.{os.urandom(8).hex()}"
        os.mkdir(name, 0o700, dir_fd=parent)
        try:
            fd = os.open(name, DIRECTORY, dir_fd=parent)
        except FileNotFoundError:
            continue
        if files.try_flock(fd) and os.fstat(fd).st_nlink:
            os.fchown(fd, -1, gid)
            os.fchmod(fd, 0o710)
            return name, fd
        os.close(fd)


def _make_inner(path: str, outer: int, identity: Identity, caps: Caps) -> Scratch:
    name = os.urandom(16).hex()
    os.mkdir(name, 0o700, dir_fd=outer)
    is_loop_filesystem = os.geteuid() == 0 and mount_loop_filesystem(outer, path, name, caps)
    fd = os.open(name, DIRECTORY, dir_fd=outer)
    if is_loop_filesystem:
        os.rmdir("lost+found", dir_fd=fd)
        os.fchmod(fd, 0o700)
    os.fchown(fd, identity.uid, identity.gid)
    return Scratch(f"{path}/{name}", fd, caps, is_loop_filesystem)


@contextmanager
def disk_errors(path: str) -> Iterator[None]:
    """Turn an `OSError` of this node's disk into `ScratchUnusable`, `WorkspaceNotRoots` or `FileSystemBroken`."""
    try:
        yield
    except Untrusted as error:
        raise WorkspaceNotRoots.of(path, error) from error
    except OSError as error:
        kind = FileSystemBroken if error.errno in NODE_FAULTS else ScratchUnusable
        raise kind(path=path, problem=error.strerror or str(error)) from error


def mount_loop_filesystem(outer: int, path: str, name: str, caps: Caps) -> bool:
    """Mount a new file system of the size of `caps` on the directory `name` in `path`, which is open as `outer`.

    Return False, and leave nothing behind, if this node cannot do it: no loop devices, no mke2fs, or the file would be
    too large. Raises `OSError` if the disk fails. Nobody but root may be able to rename anything above `path`.
    """
    files = min(caps.files, caps.size // FILESYSTEM_BLOCK)
    fd = os.open(DISK, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=outer)
    try:
        os.ftruncate(fd, caps.size + files * INODE + caps.size // 1024 + OVERHEAD)
        is_mounted = _has_mounted(fd, f"{path}/{DISK}", files, f"{path}/{name}")
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        is_mounted = False
    finally:
        os.close(fd)
    if not is_mounted:
        os.unlink(DISK, dir_fd=outer)
    return is_mounted


def _has_mounted(file: int, path: str, files: int, target: str) -> bool:
    """Make a file system for so many files in the open file at `path`, and mount it; return whether that worked."""
    from warmstart.host import linux, loops, process

    make = [
        MKE2FS, "-q", "-F", "-t", "ext4", "-b", str(FILESYSTEM_BLOCK), "-I", str(INODE), "-m", "0", "-N", str(files),
        "-O", FEATURES, "-E", "lazy_itable_init=1,nodiscard", path,
    ]  # fmt: skip
    with suppress(WarmstartError, OSError):
        if process.run(make, deadline=after(MAKING_S)).status:
            return False
        device, source = loops.attach(file, path, writable=True)
        try:
            linux.mount(source, target, "ext4", linux.RESTRICTED | linux.MS_NOATIME, OPTIONS)
        finally:
            os.close(device)  # the mount keeps it
        return True
    return False


class Watch:
    """Check from time to time whether a directory has outgrown its caps; `left` is of them what was left then."""

    def __init__(self, directory: int, caps: Caps) -> None:
        self._directory = directory
        self._caps = self.left = caps
        self._next = 0.0

    def __call__(self) -> None:
        """Raise `Exceeded` if the directory is too large; do nothing if it is too early to measure again."""
        if time.monotonic() >= self._next:
            self.look()

    def look(self) -> None:
        """Measure now; raise `Exceeded` if the directory is too large. Follows no links, opens no files."""
        started = time.monotonic()
        self.left = _add(self._directory, self._caps, 1)
        ended = time.monotonic()
        self._next = ended + max(EVERY_S, LOOK_SHARE * (ended - started))


def _add(directory: int, left: Caps, depth: int) -> Caps:
    """Subtract everything below a directory from the caps; files that vanish meanwhile do not count."""
    if depth > DEEPEST:
        raise Exceeded
    size, files = left
    with suppress(OSError), os.scandir(directory) as listing:
        for entry in listing:
            with suppress(OSError):
                status = entry.stat(follow_symlinks=False)
                size, files = size - status.st_blocks * STAT_BLOCK, files - 1
                if size < 0 or files < 0:
                    raise Exceeded
                if stat.S_ISDIR(status.st_mode):
                    below = os.open(entry.name, DIRECTORY, dir_fd=directory)
                    try:
                        size, files = _add(below, Caps(size, files), depth + 1)
                    finally:
                        os.close(below)
    return Caps(size, files)
