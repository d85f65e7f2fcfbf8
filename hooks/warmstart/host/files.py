"""File operations that are safe where others can write: relative to descriptors, following no links.

Reading, writing, copying, locking with flock(2), directories that only their owners can change, and removing trees.
Hot path: imports only what the interpreter has loaded anyway. Every function raises plain `OSError`; the callers know
whose fault that is.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from warmstart.host.deadline import Deadline

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: a FIFO that somebody put there must not hang the open.
REGULAR = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
PATH = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC  # needs no right to list, and asks no file system

CHUNK = 1 << 20  # bytes, of a copy
ROOT_ALONE = frozenset({0})  # owners
# What no user can cause, and no other job will fare better with (docs/architecture.md, rule 2): the rest never drains.
NODE_FAULTS = frozenset({errno.EROFS, errno.EIO, errno.ENODEV, errno.ENXIO, errno.EUCLEAN})
# Deeper directories are moved up before they are entered: descriptors are few, and a job can nest 4,000 deep.
_DEEPEST = 48
_MOST_MOUNTS = 16  # one over the other; more are left for the next call


class ReadFailed(OSError):
    """The source of a copy could not be read; any other `OSError` of a copy is its target's."""


class Untrusted(PermissionError):
    """Others could change what has to be its owners' alone: `filename` can be changed, and `strerror` says how."""


class Copied(NamedTuple):
    """What has been read of a file."""

    size: int  # bytes
    sha256: str  # of them, in hexadecimal


class _Removal(NamedTuple):
    """The removal of one tree: its top directory, the mount that it lies on, and when to stop."""

    top: int
    mount: str
    deadline: Deadline


@contextmanager
def opened_dir(path: str, dir_fd: int | None = None) -> Iterator[int]:
    """Open a directory (not through a link) for the length of a `with`."""
    fd = os.open(path, DIRECTORY, dir_fd=dir_fd)
    try:
        yield fd
    finally:
        os.close(fd)


def open_regular(name: str, dir_fd: int | None = None) -> int:
    """Open a regular file for reading; `EINVAL` for anything else, links included (`ELOOP`)."""
    fd = os.open(name, REGULAR, dir_fd=dir_fd)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", name)
    return fd


def read_small(name: str, limit: int, dir_fd: int | None = None) -> bytes:
    """Return a regular file's content; `EFBIG` when it has more than `limit` bytes."""
    fd = open_regular(name, dir_fd)
    try:
        size = os.fstat(fd).st_size
        data = read_up_to(fd, limit + 1) if size <= limit else b""
        if size > limit or len(data) > limit:
            raise OSError(errno.EFBIG, f"larger than {limit} bytes", name)
        return data
    finally:
        os.close(fd)


def read_up_to(fd: int, most: int) -> bytes:
    """Read on to the end of the file, and `most` bytes at the most: one more than allowed shows a file too long."""
    data = b""
    while len(data) < most and (chunk := os.read(fd, most - len(data))):
        data += chunk
    return data


def names_in(directory: str) -> list[str]:
    """Return the names in a directory, sorted; none where there is no directory."""
    try:
        return sorted(os.listdir(directory))
    except FileNotFoundError:
        return []


def is_at(fd: int, path: str, dir_fd: int | None = None) -> bool:
    """Tell whether `path`, which is no link, still names the open file: to be checked after waiting for its lock."""
    try:
        found = os.stat(path, dir_fd=dir_fd, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return os.path.samestat(os.fstat(fd), found)


def mount_id(fd: int) -> str:
    """Return the id of the mount that a descriptor is on (proc(5), fdinfo): it tells bind mounts apart."""
    with open(f"/proc/self/fdinfo/{fd}", encoding="ascii") as info:
        for line in info:
            if line.startswith("mnt_id:"):
                return line.split()[1]
    raise OSError(errno.ENOTSUP, "the kernel tells no mnt_id", f"/proc/self/fdinfo/{fd}")


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data`: a regular file may take less at once when the disk fills up."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def replace_file(dir_fd: int, name: str, data: bytes, mode: int, *, durable: bool = True) -> None:
    """Make `name` hold `data`, atomically: readers see the old or the new content, whole.

    Without `durable` nothing is synced: a power failure may leave an empty file. The temporary name holds the
    process id: a writer that died leaves one name, which the next process with that id takes over.
    """
    temp = f".{name}.{os.getpid()}.tmp"
    try:
        fd = os.open(temp, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode, dir_fd=dir_fd)
        try:
            os.fchmod(fd, mode)
            write_all(fd, data)
            if durable:
                os.fsync(fd)
        finally:
            os.close(fd)
        os.rename(temp, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
    except OSError:
        unlink_if_there(temp, dir_fd)
        raise
    if durable:
        os.fsync(dir_fd)


def unlink_if_there(name: str, dir_fd: int) -> bool:
    """Unlink a name; return whether it was there."""
    try:
        os.unlink(name, dir_fd=dir_fd)
    except FileNotFoundError:
        return False
    return True


def copy_hashed(
    source: int,
    target: int | None = None,
    *,
    offset: int = 0,
    most: int | None = None,
    watch: Callable[[], object] = lambda: None,
) -> Copied:
    """Read a file once, hash it on the way, and write it to `target`, if there is one, from where that stands.

    Reads from `offset` to the end, and at most `most` bytes: one more than there should be shows a file that is longer.
    `watch` is called before every read; what it raises ends the copy. `ReadFailed` for the source, `OSError` for the
    target. The position of `source` is neither used nor changed.
    """
    import hashlib  # loads OpenSSL, which costs a tenth of a warm prolog

    digest = hashlib.sha256()
    size = 0
    for chunk in _chunks(source, offset, most, watch):
        digest.update(chunk)
        if target is not None:
            write_all(target, chunk)
        size += len(chunk)
    return Copied(size, digest.hexdigest())


def copy(source: int, target: int) -> int:
    """Copy a file from its start, as `copy_hashed` does; return its size in bytes."""
    size = 0
    for chunk in _chunks(source, 0, None, lambda: None):
        write_all(target, chunk)
        size += len(chunk)
    return size


def _chunks(source: int, offset: int, most: int | None, watch: Callable[[], object]) -> Iterator[bytes]:
    left = most
    while left is None or left > 0:
        watch()
        try:
            chunk = os.pread(source, CHUNK if left is None else min(CHUNK, left), offset)
        except OSError as error:
            raise ReadFailed(error.errno, error.strerror) from error
        if not chunk:
            return
        yield chunk
        offset += len(chunk)
        left = left and left - len(chunk)


def try_flock(fd: int, *, shared: bool = False) -> bool:
    """Lock `fd`, alone or shared with others who do; return False at once where somebody holds it."""
    try:
        fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def wait_flock(fd: int, deadline: Deadline, pause_s: float = 0.02, *, shared: bool = False) -> bool:
    """Wait for the lock, trying every `pause_s` seconds; return False where somebody still holds it at the deadline."""
    while not try_flock(fd, shared=shared):
        if deadline.expired():
            return False
        time.sleep(pause_s)
    return True


def unlock(fd: int) -> None:
    """Unlock a descriptor that stays open."""
    fcntl.flock(fd, fcntl.LOCK_UN)


def ensure_dir(name: str, mode: int, dir_fd: int | None = None) -> None:
    """Make a directory with exactly this mode; one that exists gets the mode if it is our own.

    `EPERM` if it is not: in a sticky directory another user may have come first, and nothing of root's belongs below
    that.
    """
    with suppress(FileExistsError):
        os.mkdir(name, mode, dir_fd=dir_fd)
    with opened_dir(name, dir_fd) as fd:
        status = os.fstat(fd)
        if status.st_uid != os.geteuid():
            raise OSError(errno.EPERM, f"is owned by uid {status.st_uid}", name)
        if stat.S_IMODE(status.st_mode) != mode:
            os.fchmod(fd, mode)


def ensure_path(path: str, mode: int) -> None:
    """Make an absolute directory path: missing parents 0755, the last one `mode`.

    One that exists keeps its mode, since it may be the site's own (a scratch directory, 1777). `Untrusted` unless it
    is our own and nobody else can rename what we put there.
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
    if problem := weakness(status, (os.geteuid(),), sticky=True):
        raise Untrusted(errno.EPERM, problem, path)


def weakness(status: os.stat_result, owners: Collection[int] = ROOT_ALONE, *, sticky: bool = False) -> str:
    """Return how others than `owners` could change a file or directory; "" if they can't.

    `sticky` accepts a sticky directory that others can write: there nobody can move or remove what is an owner's, but
    anybody can add a name.
    """
    if status.st_uid not in owners:
        return f"belongs to uid {status.st_uid}"
    if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not (sticky and status.st_mode & stat.S_ISVTX):
        return "can be written by others" + (" and is not sticky" if sticky else "")
    return ""


@contextmanager
def opened_trusted(
    path: str,
    owners: Collection[int] = ROOT_ALONE,
    *,
    sticky: bool = False,
    make: int | None = None,
    flags: int = DIRECTORY,
) -> Iterator[int]:
    """Open an absolute directory path in which nobody but `owners` can change a component, from `/` down.

    Goes name by name, through no link: whoever owned a directory on the way could lead us anywhere. Directories above
    may be sticky (/tmp), and with `sticky` so may the directory itself. With `make` missing directories are made, the
    last one with that mode. `Untrusted`; `ENOTDIR` for a link; an error's `filename` is the directory at fault.
    """
    names = [name for name in path.split("/") if name]
    opened = "/"
    fd = os.open(opened, flags)
    try:
        _require_trust(fd, opened, owners, sticky=sticky or bool(names))
        for number, name in enumerate(names, 1):
            is_last = number == len(names)
            opened = os.path.join(opened, name)
            below = _open_below(fd, opened, flags, None if make is None else make if is_last else 0o755)
            os.close(fd)
            fd = below
            _require_trust(fd, opened, owners, sticky=sticky or not is_last)
        yield fd
    finally:
        os.close(fd)


def _open_below(parent: int, path: str, flags: int, make: int | None) -> int:
    name = os.path.basename(path)
    try:
        if make is not None:
            with suppress(FileExistsError):
                os.mkdir(name, make, dir_fd=parent)
        return os.open(name, flags, dir_fd=parent)
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error


def _require_trust(fd: int, path: str, owners: Collection[int], *, sticky: bool) -> None:
    if problem := weakness(os.fstat(fd), owners, sticky=sticky):
        raise Untrusted(errno.EPERM, problem, path)


def remove_tree(dir_fd: int, name: str, deadline: Deadline) -> None:
    """Remove `name` in `dir_fd` with all its content, however deep it is; nothing there is fine.

    What is mounted inside (a job can mount a FUSE file system of its own) is detached and not touched: `EXDEV` where
    that fails. `ETIME` at the deadline: what is left stays under its name, and the next call goes on.
    """
    mount = mount_id(dir_fd)
    try:
        top = _open_listable(name, dir_fd, mount)
    except FileNotFoundError:
        return
    except NotADirectoryError:  # a file, or a link wherever it leads
        os.unlink(name, dir_fd=dir_fd)
        return
    try:
        removal = _Removal(top, mount, deadline)
        # Moving deep directories up adds names to the top, so look again until it is empty.
        while os.listdir(top):
            _empty(removal, top, 1)
    finally:
        os.close(top)
    os.rmdir(name, dir_fd=dir_fd)


def _empty(removal: _Removal, fd: int, depth: int) -> None:
    for name in os.listdir(fd):
        if removal.deadline.expired():
            raise OSError(errno.ETIME, "not all removed before the deadline", name)
        try:
            os.unlink(name, dir_fd=fd)
        except FileNotFoundError:
            continue
        except (IsADirectoryError, PermissionError):
            # Linux answers EISDIR, POSIX allows EPERM: either way it is a directory, or rmdir says why not.
            _remove_directory(removal, fd, name, depth)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            os.close(_open_path(name, fd, removal.mount, 0))  # a file that something is mounted on


def _remove_directory(removal: _Removal, parent: int, name: str, depth: int) -> None:
    try:
        fd = _open_listable(name, parent, removal.mount)
    except FileNotFoundError:
        return
    try:
        if depth >= _DEEPEST:
            # A name that the job could not have taken.
            os.rename(name, f".up-{os.urandom(8).hex()}", src_dir_fd=parent, dst_dir_fd=removal.top)
            return
        _empty(removal, fd, depth + 1)
    finally:
        os.close(fd)
    os.rmdir(name, dir_fd=parent)


def _open_listable(name: str, parent: int, mount: str) -> int:
    """Open a directory of this mount for listing."""
    path = _open_path(name, parent, mount, os.O_DIRECTORY)
    try:
        return os.open(".", DIRECTORY, dir_fd=path)
    finally:
        os.close(path)


def _open_path(name: str, parent: int, mount: str, flags: int) -> int:
    """Return an O_PATH descriptor of `name` on this mount, after detaching what is mounted over it; `EXDEV`.

    O_PATH asks nobody: opening the root of a FUSE file system asks its daemon, which may never answer.
    """
    for _ in range(_MOST_MOUNTS):
        path = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC | flags, dir_fd=parent)
        if mount_id(path) == mount:
            return path
        from warmstart.host.linux import detach

        detached = detach(path)
        os.close(path)
        if not detached:
            break
    raise OSError(errno.EXDEV, "something is mounted there", name)
