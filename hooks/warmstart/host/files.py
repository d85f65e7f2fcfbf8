"""File operations that are safe in directories that others can write: descriptor-relative, following no links.

Reading, writing, copying, flock(2), directories that only trusted owners can change, and recursive removal. Hot path:
imports only what the interpreter has loaded anyway. All functions raise plain `OSError`, because only callers know
whose fault it is: they make it `FileSystemBroken` for one of `NODE_FAULTS`, and `DiskFailed` where a user may be.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time

from warmstart.errors import NodeError, ResourceError
from warmstart.host.deadline import Deadline
from warmstart.lean import Callable, Collection, Iterator, NamedTuple, contextmanager, sha256, suppress

DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: opening a FIFO does not hang.
REGULAR = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
# O_PATH: needs no read permission, and does not reach the file system's own open (a FUSE daemon).
PATH = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC

CHUNK = 1 << 20  # bytes that a copy reads at once
ROOT_ALONE = frozenset({0})  # trusted owners
# Errors that no user can cause and that every other job would meet, too: only these drain the node
# (docs/architecture.md, rule 2).
NODE_FAULTS = frozenset({errno.EROFS, errno.EIO, errno.ENODEV, errno.ENXIO, errno.EUCLEAN})
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_ACL = "system.posix_acl_access"
# Tags of acl(5) entries, as the kernel's posix_acl_xattr.h numbers them; only USER has an id.
_USER_OBJ, _USER, _GROUP_OBJ, _MASK, _OTHER = 0x01, 0x02, 0x04, 0x10, 0x20
_ACL_VERSION, _NO_ID = 2, 0xFFFFFFFF
_READ, _WRITE, _ENTER = 4, 2, 1
_MOST_MOUNTS = 16  # on one name; more are left for the next call
# A removal keeps this many names of directories in each of so many topmost levels; it reads the rest again.
_NAMES_KEPT, _LEVELS_KEPT = 1024, 64
_IDENTITY = 16  # bytes of a device and an inode number


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


class ReadFailed(OSError):
    """The source of a copy could not be read. Any other `OSError` of a copy comes from its target."""


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


class Copied(NamedTuple):
    """Size and hash of what was read from a file."""

    size: int  # bytes
    sha256: str  # hexadecimal


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


def unknown_group(path: str) -> str:
    """Return the words for a path that is refused for want of a group that this process lacks; "" for any other.

    A job's credential may name groups that this node does not know its user in, as with nss_slurm.
    """
    import grp

    groups = {os.getegid(), *os.getgroups()}
    while path not in ("", "/"):
        with suppress(OSError):
            found = os.stat(path)
            mode = found.st_mode
            if found.st_gid not in groups and mode & 0o050 and not mode & 0o005 and found.st_uid != os.geteuid():
                with suppress(KeyError):
                    return (
                        f"; this node does not know the user as a member of group {grp.getgrgid(found.st_gid).gr_name}"
                    )
                return f"; this node does not know the user as a member of group {found.st_gid}"
        path = os.path.dirname(path)
    return ""


def is_of_users_daemon(fd: int) -> bool:
    """Return whether an open file is served by a FUSE daemon of a user's, or of a mount that is not ours to judge.

    Such a daemon answers when it likes, and says of owner, mode and content what it likes (mount.fuse3(8), user_id).
    """
    mount = mount_id(fd)
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
        fields = next((line.split() for line in mounts if line.startswith(f"{mount} ")), None)
    if fields is None:
        return True
    kind, *_, options = fields[fields.index("-") + 1 :]  # its source may be empty
    return kind.startswith("fuse") and "user_id=0" not in options.split(",")


def allow_reading(fd: int, uid: int, gid: int) -> None:
    """Let a user read our own file, which nobody else may, and not change it.

    Sets the access control list `user::r-- user:UID:r-- group::--- mask::r-- other::---` (acl(5)). If the file system
    has none, the file becomes the user's own, mode 0400.
    """
    os.fchmod(fd, 0o400)
    try:
        _allow(fd, uid, _READ, _READ)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        os.fchown(fd, uid, gid)


def share_reading(fd: int, uid: int) -> None:
    """Let a user read our own file, which stays ours to write: all users, if the file system has no such lists."""
    try:
        _allow(fd, uid, _READ | _WRITE, _READ)
    except OSError as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        os.fchmod(fd, 0o644)


def allow_entering(fd: int, uid: int) -> None:
    """Let a user list and enter our own directory, which nobody else may, and not change it.

    `EOPNOTSUPP` if the file system has no access control lists.
    """
    _allow(fd, uid, _READ | _WRITE | _ENTER, _READ | _ENTER)


def _allow(fd: int, uid: int, ours: int, theirs: int) -> None:
    """Set the access control list `user::OURS user:UID:THEIRS group::--- mask::THEIRS other::---` (acl(5))."""
    entries = ((_USER_OBJ, ours, _NO_ID), (_USER, theirs, uid), (_GROUP_OBJ, 0, _NO_ID), (_MASK, theirs, _NO_ID))
    acl = _ACL_VERSION.to_bytes(4, "little")
    for tag, permissions, identifier in (*entries, (_OTHER, 0, _NO_ID)):
        acl += tag.to_bytes(2, "little") + permissions.to_bytes(2, "little") + identifier.to_bytes(4, "little")
    os.setxattr(fd, _ACL, acl)


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


def copy_hashed(
    source: int,
    target: int | None = None,
    *,
    most: int | None = None,
    have: int = 0,
) -> Copied:
    """Hash a file while reading it once, and copy it to `target`, if given, at that descriptor's position.

    Reads from the start, but no more than `most` bytes; to detect a file that is too long, pass one byte more than is
    expected. The first `have` bytes are hashed in `target`, where an earlier copy left them, and not read again. Raises
    `ReadFailed` for the source and `OSError` for the target. The position of `source` is neither used nor changed.
    """
    digest = sha256(more=have)
    size = 0
    while target is not None and size < have and (chunk := os.pread(target, min(CHUNK, have - size), size)):
        digest.update(chunk)
        size += len(chunk)
    for chunk in _chunks(source, size, most if most is None else most - size):
        if size == 0:  # nothing is hashed yet, and this tells whether there is much
            digest = sha256(more=len(chunk))
        digest.update(chunk)
        if target is not None:
            write_all(target, chunk)
        size += len(chunk)
    return Copied(size, digest.hexdigest())


def copy_data(source: int, target: int, size: int, watch: Callable[[int], object]) -> Copied:
    """Hash the first `size` bytes of a file, and copy its data to an empty one of the same length; holes stay holes.

    `watch` is called before every write with its number of bytes, and with 0 before every part of a hole; an exception
    from it ends the copy. Errors as in `copy_hashed`. Changes the position of both files.
    """
    digest = sha256(more=size)
    zeros = bytes(CHUNK)
    done = 0
    for start, end in _extents(source, size):
        for offset in range(done, start, CHUNK):
            watch(0)
            digest.update(memoryview(zeros)[: start - offset])
        done = start
        os.lseek(target, start, os.SEEK_SET)
        for chunk in _chunks(source, start, end - start):
            watch(len(chunk))
            write_all(target, chunk)
            digest.update(chunk)
            done += len(chunk)
        if done < end:  # the file became shorter
            break
    os.ftruncate(target, done)
    return Copied(done, digest.hexdigest())


def _extents(source: int, size: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each part of the first `size` bytes that is no hole; at last an empty one at the end."""
    end = 0
    while end < size:
        start = min(seek(source, end, os.SEEK_DATA, size), size)
        end = min(seek(source, start, os.SEEK_HOLE, size), size) if start < size else size
        yield start, end


def seek(source: int, offset: int, whence: int, size: int) -> int:
    """Return where data (`SEEK_DATA`) or a hole (`SEEK_HOLE`) begins in a file of a size. Raises `ReadFailed`."""
    try:
        return os.lseek(source, offset, whence)
    except OSError as error:
        if error.errno == errno.ENXIO:  # lseek(2): nothing of this kind up to the end of the file
            return size
        if error.errno == errno.EINVAL:  # the file system does not know holes
            return offset if whence == os.SEEK_DATA else size
        raise ReadFailed(error.errno, error.strerror) from error


def copy(source: int, target: int) -> int:
    """Copy a file from its start without hashing it; return its size in bytes. Errors as in `copy_hashed`."""
    size = 0
    for chunk in _chunks(source, 0, None):
        write_all(target, chunk)
        size += len(chunk)
    return size


def _chunks(source: int, offset: int, most: int | None) -> Iterator[bytes]:
    left = most
    while left is None or left > 0:
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


@contextmanager
def opened_trusted(
    path: str,
    owners: Collection[int] = ROOT_ALONE,
    *,
    sticky: bool = False,
    make: int | None = None,
    flags: int = DIRECTORY,
) -> Iterator[int]:
    """Open an absolute directory path of which nobody but `owners` can change any component, from `/` down.

    Walks the path name by name and follows no link, since whoever can write a directory on the way could redirect the
    rest. Parent directories may be sticky (/tmp), and with `sticky` so may the directory itself. `make` creates
    missing directories, the last one with that mode. Raises `Untrusted`, or `OSError` (`ENOTDIR` for a link);
    `filename` is the directory at fault.
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
    """Remove `name` in `dir_fd` recursively, at any depth; do nothing if it is missing.

    Mounts in the tree (a job can mount a FUSE file system of its own) are detached, and their files are not touched.
    Raises `EXDEV` if detaching fails, `EAGAIN` if a process moves a directory of the tree meanwhile, and `ETIME` at the
    deadline; the next call continues with what is left.
    """
    mount = mount_id(dir_fd)
    try:
        top = _open_listable(name, dir_fd, mount)
    except FileNotFoundError:
        return
    except NotADirectoryError:  # a file or a link
        os.unlink(name, dir_fd=dir_fd)
        return
    _empty(top, mount, deadline)
    os.rmdir(name, dir_fd=dir_fd)


def _empty(fd: int, mount: str, deadline: Deadline) -> None:
    """Remove everything below a directory, and close it.

    A job makes as many names in a directory as it likes, and nests as deep, and hard links are in no quota. So names
    are unlinked as they are read, and a level takes some bytes. Only one directory is open at a time; the way back is
    `..`. Nothing is moved, because rename(2) fails between two project ids (EXDEV on XFS and ext4), and users can set
    those of their own directories.
    """
    above = bytearray()  # the identity of each directory above
    kept: list[list[str]] = []  # names of directories in each of the topmost ones
    names: list[str] = []  # of directories in this one
    try:
        while True:
            if not names:
                names = _unlink_up_to_directories(fd, mount, deadline)
            if names:
                _in_time(names[-1], deadline)
                below = _open_unless_removed(names[-1], fd, mount)
                if below is None:
                    names.pop()
                    continue
                above += _identity(fd)
                if len(kept) < _LEVELS_KEPT:
                    kept.append(names)
                names = []
                os.close(fd)
                fd = below
                continue
            if not above:
                return
            back = os.open("..", DIRECTORY, dir_fd=fd)
            os.close(fd)
            fd = back
            if _identity(fd) != above[-_IDENTITY:]:
                raise OSError(errno.EAGAIN, "a process moved it during its removal", "..")
            del above[-_IDENTITY:]
            if len(above) < len(kept) * _IDENTITY:
                names = kept.pop()
                os.rmdir(names.pop(), dir_fd=fd)
    finally:
        os.close(fd)


def _identity(fd: int) -> bytes:
    status = os.fstat(fd)
    return status.st_dev.to_bytes(8, "little") + status.st_ino.to_bytes(8, "little")


def _in_time(name: str, deadline: Deadline) -> None:
    if deadline.expired():
        raise OSError(errno.ETIME, "not all removed before the deadline", name)


def _unlink_up_to_directories(fd: int, mount: str, deadline: Deadline) -> list[str]:
    """Unlink what is no directory; return names of directories, not all if they are many, or [] if nothing is left.

    A file system may leave out names if others are unlinked while it is read, so only a pass without any is the end.
    """
    folders: list[str] = []
    is_empty = False
    while not folders and not is_empty:
        is_empty = True
        with os.scandir(fd) as names:  # reads some kilobytes at a time; its end rewinds
            for entry in names:
                is_empty = False
                _in_time(entry.name, deadline)
                if not _unlinked(entry.name, fd, mount):
                    folders.append(entry.name)
                    if len(folders) == _NAMES_KEPT:
                        break
    return folders


def _unlinked(name: str, fd: int, mount: str) -> bool:
    """Unlink a name; return False if it is a directory."""
    try:
        os.unlink(name, dir_fd=fd)
    except FileNotFoundError:
        return True
    except (IsADirectoryError, PermissionError):
        # For a directory unlink(2) fails with EISDIR on Linux, and with EPERM by POSIX. If the cause is another
        # one, removing it as a directory fails, too.
        return False
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        os.close(_open_path(name, fd, mount, 0))  # a file that something is mounted on
        os.unlink(name, dir_fd=fd)
    return True


def _open_unless_removed(name: str, parent: int, mount: str) -> int | None:
    """Remove an empty directory, or open it for listing if something is in it or on it."""
    try:
        os.rmdir(name, dir_fd=parent)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY):
            raise
    else:
        return None
    with suppress(FileNotFoundError):
        return _open_listable(name, parent, mount)
    return None


def _open_listable(name: str, parent: int, mount: str) -> int:
    """Open a directory for listing; `EXDEV` if it is not on this mount."""
    with closing(_open_path(name, parent, mount, os.O_DIRECTORY)) as path:
        return os.open(".", DIRECTORY, dir_fd=path)


def _open_path(name: str, parent: int, mount: str, flags: int) -> int:
    """Return an O_PATH descriptor of `name` on this mount, after detaching any mounts on top of it.

    Raises `EXDEV` if one cannot be detached. O_PATH, because opening the root of a FUSE file system for reading waits
    for its daemon, which may never answer.
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


def touch(name: str, dir_fd: int | None = None) -> None:
    """Set a file's times to now; create it, empty and with mode 0644, if it is missing. Follows no link."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with closing(os.open(name, flags, 0o644, dir_fd=dir_fd)) as fd:
        os.utime(fd)
