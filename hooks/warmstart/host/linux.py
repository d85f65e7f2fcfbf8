"""Linux mount calls and ID-mapped mounts through the C library, since Python has no functions for them.

Anything that a job could change
is named by descriptor (`proc_path`), never by path. Constants of mount(2), umount2(2), open_tree(2), move_mount(2) and
mount_setattr(2) are from the kernel's headers; system call numbers above 423 are the same on all architectures but
alpha. All functions raise plain `OSError`.
"""

from __future__ import annotations

import errno
import os
import sys

from warmstart.lean import TYPE_CHECKING, Callable, Iterator, contextmanager, libc

if TYPE_CHECKING:
    from typing import NoReturn

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_REMOUNT = 32
MS_NOATIME = 1024
MS_BIND = 4096
MS_REC = 1 << 14
MS_PRIVATE = 1 << 18
RESTRICTED = MS_NOSUID | MS_NODEV  # never noexec: cache entries are code

_MNT_DETACH = 2  # lazy unmount: hidden at once, unmounted when it is no longer busy (umount(2))
_UMOUNT_NOFOLLOW = 8

_AT_EMPTY_PATH = 0x1000
_STATX_BTIME = 0x800  # statx(2)
_AT_RECURSIVE = 0x8000
_OPEN_TREE, _MOVE_MOUNT, _OPENAT2, _MOUNT_SETATTR = 428, 429, 437, 442
_OPEN_TREE_CLONE = 1
_OPEN_TREE_CLOEXEC = os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH, _MOVE_MOUNT_T_EMPTY_PATH = 4, 0x40
_MOUNT_ATTR_RDONLY, _MOUNT_ATTR_NOSUID, _MOUNT_ATTR_NODEV = 1, 2, 4
_MOUNT_ATTR_IDMAP = 0x100000
_RESOLVE_NO_LINKS = 2 | 4  # magic links, and all others
_AT_FDCWD = -100

CLONE_NEWUSER = 0x10000000


def proc_path(fd: int, proc: str = "/proc") -> str:
    """Return a path to the file that is open as `fd`, even if its name has changed. `proc` is a mounted proc(5)."""
    return f"{proc}/self/fd/{fd}"


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Mount `source` at `target` with a file system of type `kind` (mount(2))."""
    libc("mount", source.encode(), target.encode(), kind.encode(), flags, options.encode())


def bind(source: str, target: str) -> None:
    """Bind-mount `source` at `target`. The mount inherits the source's flags."""
    mount(source, target, "none", MS_BIND)


def make_private(target: str) -> None:
    """Stop the propagation of mounts to and from the mount at `target` (mount_namespaces(7), MS_PRIVATE)."""
    mount("none", target, "none", MS_PRIVATE)


def make_read_only(path_fd: int) -> None:
    """Remount the file system with the root `path_fd` read-only; `EBUSY` while a file is open for writing."""
    mount("none", proc_path(path_fd), "none", MS_REMOUNT | MS_RDONLY | RESTRICTED)


def clone(path_fd: int, *, below: bool = False) -> int:
    """Return a detached copy of the mount with the root `path_fd`, with the mounts `below` it if they are wanted."""
    # open_tree with AT_EMPTY_PATH takes the descriptor itself.
    flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_EMPTY_PATH | (_AT_RECURSIVE if below else 0)
    return libc("syscall", _OPEN_TREE, path_fd, b"", flags)


def map_ids(mount_fd: int, userns_fd: int) -> None:
    """Give a detached mount the ID mapping of a user namespace; `EINVAL` if the kernel or file system cannot."""
    _set_attributes(mount_fd, _AT_EMPTY_PATH, _MOUNT_ATTR_IDMAP, userns_fd)


def restrict(mount_fd: int) -> None:
    """Make a detached mount, and those below it, read-only, nosuid and nodev (Linux 5.12)."""
    restricted = _MOUNT_ATTR_RDONLY | _MOUNT_ATTR_NOSUID | _MOUNT_ATTR_NODEV
    _set_attributes(mount_fd, _AT_EMPTY_PATH | _AT_RECURSIVE, restricted)


def _set_attributes(mount_fd: int, flags: int, attributes: int, userns_fd: int = 0) -> None:
    # struct mount_attr, first version: attr_set, attr_clr, propagation, userns_fd
    given = _numbers(attributes, 0, 0, userns_fd)
    libc("syscall", _MOUNT_SETATTR, mount_fd, b"", flags, given, len(given))


def _numbers(*numbers: int) -> bytes:
    return b"".join(number.to_bytes(8, sys.byteorder) for number in numbers)


def attach(mount_fd: int, target: str) -> None:
    """Attach a detached mount at `target` (move_mount(2))."""
    libc("syscall", _MOVE_MOUNT, mount_fd, b"", _AT_FDCWD, target.encode(), _MOVE_MOUNT_F_EMPTY_PATH)


def attach_on(mount_fd: int, path_fd: int) -> None:
    """Attach a detached mount on an open directory, or one of a file on an open file, whatever its path."""
    libc("syscall", _MOVE_MOUNT, mount_fd, b"", path_fd, b"", _MOVE_MOUNT_F_EMPTY_PATH | _MOVE_MOUNT_T_EMPTY_PATH)


def open_without_links(path: str) -> int:
    """Return a descriptor (O_PATH) of a file or directory; `ELOOP` if a name in its path is a link (openat2(2))."""
    how = _numbers(os.O_PATH | os.O_CLOEXEC, 0, _RESOLVE_NO_LINKS)
    return libc("syscall", _OPENAT2, _AT_FDCWD, os.fsencode(path), how, len(how), subject=path)


def identity(fd: int) -> str:
    """Return device, inode, and birth in nanoseconds (0: unknown) of an open file: an inode may be used again."""
    from array import array

    found = array("q", bytes(256))
    libc("statx", fd, b"", _AT_EMPTY_PATH, _STATX_BTIME, found.buffer_info()[0])
    birth = found[10] * 10**9 + (found[11] & 0xFFFFFFFF) if found[0] & _STATX_BTIME else 0
    status = os.fstat(fd)
    return f"{status.st_dev} {status.st_ino} {birth}"


def unmount(name: str, dir_fd: int) -> bool:
    """Unmount the topmost mount at `name` in `dir_fd`, lazily if it is busy; return whether it was not busy.

    Takes a name, because a descriptor of the mount would keep it busy. A job may own `dir_fd`: a link there is not
    followed, and any other mount under that name is the job's own. Raises `EINVAL` if nothing is mounted.
    """
    with working_in(dir_fd):
        return unmount_here(name)


def unmount_idle(name: str, dir_fd: int) -> None:
    """Unmount the topmost mount at `name` in `dir_fd`. Raises `OSError`: `EBUSY` if any process has it open."""
    with working_in(dir_fd):
        libc("umount2", name.encode(), _UMOUNT_NOFOLLOW)


def unmount_here(name: str) -> bool:
    """Unmount `name` in the working directory, as `unmount` does in another one."""
    try:
        libc("umount2", name.encode(), _UMOUNT_NOFOLLOW)
    except OSError:
        libc("umount2", name.encode(), _UMOUNT_NOFOLLOW | _MNT_DETACH)
        return False
    return True


def detach(path_fd: int, proc: str = "/proc") -> bool:
    """Unmount the mount with the root `path_fd` (O_PATH) lazily; return whether that worked.

    Takes a descriptor, so that a name that a job can change is not looked up again. `proc` is that of `proc_path`.
    """
    try:
        libc("umount2", proc_path(path_fd, proc).encode(), _MNT_DETACH)
    except OSError:
        return False
    return True


def detach_path(path: str) -> None:
    """Unmount the topmost mount at `path` lazily. Nobody but root may be able to change any name in it."""
    libc("umount2", os.fsencode(path), _MNT_DETACH | _UMOUNT_NOFOLLOW, subject=path)


@contextmanager
def working_in(dir_fd: int) -> Iterator[None]:
    """Change the working directory to `dir_fd` for a `with`: mount options have no room for many absolute paths."""
    before = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fchdir(dir_fd)
        try:
            yield
        finally:
            os.fchdir(before)
    finally:
        os.close(before)


def clone_as(path_fd: int, owner: tuple[int, int], shown_as: tuple[int, int]) -> int:
    """Return a detached copy, read-only, nosuid and nodev, of the mount that has the directory `path_fd`, from there.

    What belongs to the `owner` (uid and gid) is shown as another's. Raises `EINVAL` if the kernel or the file system
    cannot.
    """
    mount_fd = clone(path_fd)
    try:
        namespace = user_namespace(*shown_as, owner)
        try:
            map_ids(mount_fd, namespace)
        finally:
            os.close(namespace)
        restrict(mount_fd)
    except BaseException:
        os.close(mount_fd)
        raise
    return mount_fd


def user_namespace(uid: int, gid: int, inside: tuple[int, int] = (0, 0)) -> int:
    """Return a descriptor of a new user namespace that maps the ids `inside` to `uid` and `gid`.

    The namespace holds no mounts. Raises `OSError` if the kernel refuses.
    """
    with child_in(lambda: libc("unshare", CLONE_NEWUSER), "user namespace") as pid:
        for name, own, outside in (("uid_map", inside[0], uid), ("gid_map", inside[1], gid)):
            with open(f"/proc/{pid}/{name}", "wb", buffering=0) as file:
                file.write(b"%d %d 1" % (own, outside))
        return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)


@contextmanager
def child_in(enter: Callable[[], object], what: str) -> Iterator[int]:
    """Fork a child that calls `enter`, and stays in the namespace that this enters for a `with`; yield its pid.

    A child, because a process cannot leave every namespace. It has ended when the `with` is left. Raises the `OSError`
    of `enter`, about `what`.
    """
    ready_read, ready_write = os.pipe()
    go_read, go_write = os.pipe()
    pid = os.fork()
    if not pid:
        _enter(enter, ready_write, go_read, (ready_read, go_write))
    os.close(ready_write)
    os.close(go_read)
    try:
        answer = os.read(ready_read, 2)
        if number := int.from_bytes(answer, "little") if answer else errno.EIO:
            raise OSError(number, os.strerror(number), what)
        yield pid
    finally:
        os.close(ready_read)
        os.close(go_write)  # the child ends
        os.waitpid(pid, 0)


def _enter(enter: Callable[[], object], ready: int, go: int, others: tuple[int, int]) -> NoReturn:
    """Call `enter`, write 0 or its errno to `ready`, and exit when `go` is closed."""
    number = errno.EIO
    try:
        for fd in others:
            os.close(fd)
        try:
            enter()
            number = 0
        except OSError as error:
            number = error.errno or errno.EIO
        os.write(ready, number.to_bytes(2, "little"))  # EPIPE if the parent was killed
        os.read(go, 1)
    finally:
        os._exit(0)
