"""File operations that are safe in directories that others can write: descriptor-relative, following no links.

Reading, writing, flock(2), and directories that only trusted owners can change; copies are in `copying`, removal is in
`remove`. Hot path: imports only what the interpreter has loaded anyway. All functions raise plain `OSError`, because
only callers know whose fault it is: they make it `FileSystemBroken` for one of `NODE_FAULTS`, and `DiskFailed` where a
user may be.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time

from warmstart.errors import NodeError, ResourceError
from warmstart.host.deadline import Deadline
from warmstart.lean import Callable, Collection, Iterator, contextmanager, suppress

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO does not hang.
REGULAR = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
# O_PATH: needs no read permission, and does not reach the file system's own open (a FUSE daemon).
PATH = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

ROOT_ALONE = frozenset({0})  # trusted owners
# Errors that no user can cause and that every other job would meet, too: only these drain the node
# (docs/architecture.md, rule 2).
NODE_FAULTS = frozenset({errno.EROFS, errno.EIO, errno.ENODEV, errno.ENXIO, errno.EUCLEAN})
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class FileSystemBroken(NodeError):
    """The file system of the workspaces (imports work there, too) or of warmstart's state is read-only or failing."""

    code = "file-system-broken"
    template = "cannot use {path}: {problem}"
    hint = "repair or remount the file system, then resume the node"


class DiskFailed(ResourceError):
    """Something could not be written to this node's disk, or not be read there: mostly the disk is full."""

    code = "disk-failed"
    template = "{what}: {problem}"
    hint = "read the reason: free space on that disk, or a user's quota; or see dmesg"


@contextmanager
def disk_errors(what: str) -> Iterator[None]:
    """Raise `DiskFailed` of `what`, a path or words, for an `OSError` in a `with`."""
    try:
        yield
    except OSError as error:
        raise DiskFailed(what=what, problem=error.strerror or str(error)) from error


def file_of(error: OSError) -> str:
    """Return the file that an error names; "" for none, and for a descriptor's number, as `os.listdir` names it."""
    return "" if isinstance(error.filename, int) else os.fsdecode(error.filename or "")


class Untrusted(PermissionError):
    """A path is not safe from other users: `filename` is the file or directory at fault, `strerror` the reason."""


class TooLarge(OSError, ValueError):
    """A file is larger than what is written there: also a `ValueError`, since it is none of ours, or damaged."""


@contextmanager
def closing(fd: int) -> Iterator[int]:
    """Close a descriptor after a `with`."""
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def opened_dir(path: str, dir_fd: int | None = None) -> Iterator[int]:
    """Open a directory for the duration of a `with`; the last component must not be a link."""
    with closing(os.open(path, DIRECTORY, dir_fd=dir_fd)) as fd:
        yield fd


def open_regular(name: str, dir_fd: int | None = None) -> int:
    """Open a regular file for reading; `ELOOP` for a symbolic link, `EINVAL` for other kinds of file."""
    fd = os.open(name, REGULAR, dir_fd=dir_fd)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", name)
    return fd


def read_small(name: str, limit: int, dir_fd: int | None = None) -> bytes:
    """Return the content of a regular file; `TooLarge` (`EFBIG`) if it has more than `limit` bytes."""
    with closing(open_regular(name, dir_fd)) as fd:
        size = os.fstat(fd).st_size
        data = read_up_to(fd, min(size, limit) + 1)
        if size < len(data) <= limit:  # it grows
            data += read_up_to(fd, limit + 1 - len(data))
        if size > limit or len(data) > limit:
            raise TooLarge(errno.EFBIG, f"larger than {limit} bytes", name)
        return data


def read_up_to(fd: int, most: int) -> bytes:
    """Read from the current position to the end of the file, but no more than `most` bytes.

    To detect a file that is too long, pass one byte more than is allowed.
    """
    data = b""
    while len(data) < most and (chunk := os.read(fd, most - len(data))):
        data += chunk
    return data


def names_in(directory: str) -> list[str]:
    """Return the sorted names in a directory; [] if the directory is missing."""
    try:
        return sorted(os.listdir(directory))
    except FileNotFoundError:
        return []


def is_at(fd: int, path: str, dir_fd: int | None = None) -> bool:
    """Return whether `path` (links not followed) still names the open file. Check this after waiting for its lock."""
    try:
        status = os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(fd), status)


def mount_id(fd: int) -> str:
    """Return the mount ID of a descriptor (proc(5), fdinfo). Unlike `st_dev` it distinguishes bind mounts."""
    with closing(os.open(f"/proc/self/fdinfo/{fd}", os.O_RDONLY | os.O_CLOEXEC)) as fdinfo:
        fields = os.read(fdinfo, 4096).split()  # lines of "name:\tvalue"; mnt_id is among the first
    if b"mnt_id:" in fields:
        return str(fields[fields.index(b"mnt_id:") + 1], "ascii")
    raise OSError(errno.ENOTSUP, "the kernel reports no mnt_id", f"/proc/self/fdinfo/{fd}")


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data`. A single write(2) may take less, for example when the disk fills up."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def replace_file(dir_fd: int, name: str, data: bytes, mode: int, *, durable: bool = True) -> None:
    """Replace the content of `name` with `data` atomically: readers see either all of the old or all of the new.

    Without `durable` nothing is synced, so a power failure may leave an empty file. The temporary name contains the
    process id. A writer that dies leaves one such file, which maintenance removes (`remove_temporaries`).
    """
    temp = f".{name}.{os.getpid()}.tmp"
    try:
        with closing(create_file(dir_fd, temp, data, mode)) as fd:
            os.fchmod(fd, mode)
            if durable:
                os.fsync(fd)
        os.rename(temp, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    except OSError:
        unlink_if_there(temp, dir_fd)
        raise
    if durable:
        os.fsync(dir_fd)


def create_file(dir_fd: int, name: str, data: bytes, mode: int) -> int:
    """Write a new file, which readers do not look for yet, and return its descriptor.

    A file that could not be written is left to the caller.
    """
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode, dir_fd=dir_fd)
    try:
        write_all(fd, data)
    except OSError:
        os.close(fd)
        raise
    return fd


def is_temporary(name: str) -> bool:
    """Return whether a name is one that `replace_file` writes to at first."""
    return name.startswith(".") and name.endswith(".tmp")


def remove_temporaries(directory: str, before: float) -> None:
    """Remove what writers left in a directory that died (`replace_file`) before a time in epoch seconds."""
    with suppress(FileNotFoundError), opened_dir(directory) as fd:
        remove_older(fd, before, is_temporary)


def remove_older(dir_fd: int, before: float, is_one: Callable[[str], bool]) -> int:
    """Unlink the files of such names that were last written before a time in epoch seconds; return how many."""
    names = filter(is_one, os.listdir(dir_fd))
    return sum(unlink_if_there(name, dir_fd) for name in names if written(name, dir_fd) < before)


def written(name: str, dir_fd: int) -> float:
    """Return when a file was last written, in epoch seconds; infinity if it is gone."""
    with suppress(FileNotFoundError):
        return os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_mtime
    return float("inf")


def changed(name: str, dir_fd: int) -> float:
    """Return when a file was last changed, also by a new time or link (ctime); infinity if it is gone."""
    with suppress(FileNotFoundError):
        return os.stat(name, dir_fd=dir_fd, follow_symlinks=False).st_ctime
    return float("inf")


def unlink_if_there(name: str, dir_fd: int) -> bool:
    """Unlink a name; return whether it was there."""
    try:
        os.unlink(name, dir_fd=dir_fd)
    except FileNotFoundError:
        return False
    return True


def try_flock(fd: int, *, shared: bool = False) -> bool:
    """Take an exclusive or `shared` flock(2) on `fd`; return False at once if another process holds it."""
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(path: str) -> bool:
    """Return whether another process holds the flock(2) of a file; False if it is missing.

    Takes the lock shared for a moment, so others who ask are not in the way, but whoever takes it should try twice.
    """
    with suppress(FileNotFoundError), closing(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)) as fd:
        return not try_flock(fd, shared=True)
    return False


def wait_flock(fd: int, deadline: Deadline, pause_s: float = 0.02, *, shared: bool = False) -> bool:
    """Take the lock, trying every `pause_s` seconds; return False if another process still holds it at the deadline."""
    while not try_flock(fd, shared=shared):
        if deadline.expired():
            return False
        time.sleep(pause_s)
    return True


def flock_holders(fd: int) -> list[int]:
    """Return the pids that hold a flock(2) on what `fd` has open, as far as this pid namespace has them (proc(5))."""
    status = os.fstat(fd)
    where = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    with open("/proc/locks", encoding="ascii") as file:
        found = [line.split() for line in file]
    return [int(words[4]) for words in found if words[1:2] == ["FLOCK"] and words[5:6] == [where] and int(words[4]) > 0]


def end_flock_holders(fd: int, patience: Deadline) -> bool:
    """End the processes that hold a flock(2) on what `fd` has open, which nobody but root can open.

    They may write their last lines, within a moment. Takes it, and returns whether it could.
    """
    if try_flock(fd):
        return True
    import signal

    for number, moment in ((signal.SIGTERM, patience.within(patience.left() / 2)), (signal.SIGKILL, patience)):
        for pid in flock_holders(fd):
            with suppress(OSError):  # it has ended by itself
                os.kill(pid, number)
        if wait_flock(fd, moment):
            return True
    return False


def open_lock(directory: str, name: str) -> int:
    """Open a lock file, 0600 in a directory that nobody else can enter (0700), and create both if they are missing.

    Whoever can open a file or a directory for reading can hold a flock(2) on it for ever. So what others wait for is
    locked through such a file, or through a directory that has mode 0700 itself. The lock is the caller's to take.
    """
    ensure_dir(directory, 0o700)
    return os.open(os.path.join(directory, name), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


@contextmanager
def opened_lock(directory: str, name: str) -> Iterator[int]:
    """Open a lock file, as `open_lock`, for a `with`."""
    with closing(open_lock(directory, name)) as fd:
        yield fd


def unlock(fd: int) -> None:
    """Release the flock(2) on a descriptor that stays open."""
    fcntl.flock(fd, fcntl.LOCK_UN)


def ensure_dir(name: str, mode: int, dir_fd: int | None = None) -> None:
    """Create a directory with exactly this mode, or give the mode to one that exists and is our own.

    Raises `Untrusted` if it belongs to another uid: in a sticky directory another user may
    have created it first, and root must not use that one.
    """
    with suppress(FileExistsError):
        os.mkdir(name, mode, dir_fd=dir_fd)
    with opened_dir(name, dir_fd) as fd:
        status = os.fstat(fd)
        if status.st_uid != os.geteuid():
            raise Untrusted(errno.EPERM, f"belongs to uid {status.st_uid}", name)
        if stat.S_IMODE(status.st_mode) != mode:
            os.fchmod(fd, mode)


def ensure_path(path: str, mode: int, *, sticky: bool = True) -> bool:
    """Create an absolute directory path: missing parents get 0755, the last directory `mode`. Return whether it is new.

    An existing directory keeps its mode, since the site may have chosen it (a scratch directory, 1777). Raises
    `Untrusted` unless the directory is our own and nobody else can rename what we put there; without `sticky`, also if
    others can add names.
    """
    missing = []
    parent = path
    while not os.path.lexists(parent):
        missing.append(parent)
        parent = os.path.dirname(parent)
    for directory in reversed(missing[1:]):
        ensure_dir(directory, 0o755)
    if missing:
        ensure_dir(path, mode)
    with opened_dir(path) as fd:
        status = os.fstat(fd)
    if problem := weakness(status, (os.geteuid(),), sticky=sticky):
        raise Untrusted(errno.EPERM, problem, path)
    return bool(missing)


def weakness(status: os.stat_result, owners: Collection[int] = ROOT_ALONE, *, sticky: bool = False) -> str:
    """Return how a uid outside `owners` could change a file or directory; "" if none can.

    `sticky` accepts a directory that others can write if it has the sticky bit: others can add names there, but not
    rename or remove what an owner put there.
    """
    if status.st_uid not in owners:
        return f"belongs to uid {status.st_uid}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not (sticky and status.st_mode & stat.S_ISVTX):
        return "can be written by others" + (" and is not sticky" if sticky else "")
    return ""


def touch(name: str, dir_fd: int | None = None) -> None:
    """Set a file's times to now; create it, empty and with mode 0644, if it is missing. Follows no link."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with closing(os.open(name, flags, 0o644, dir_fd=dir_fd)) as fd:
        os.utime(fd)
