"""Mount namespaces: what is mounted, a run's directories shown in another one, a new one. Not on the hot path.

A descriptor from before setns(2) belongs to the old namespace and cannot be bind-mounted in the new one. So all paths
are walked again after joining: name by name, following no link, and only where nobody but root can change them.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from itertools import groupby
from mmap import mmap
from typing import NamedTuple

from warmstart.host import linux
from warmstart.host.files import PATH, closing, mount_id, weakness
from warmstart.host.identity import Identity, surrender
from warmstart.host.trusted import opened_trusted
from warmstart.lean import libc
from warmstart.paths import NOTHING, Shown

CLONE_NEWNS = 0x20000
PROC = "."  # the working directory, once a namespace is joined (`_join`)
SHOWN = "shown"  # what `new_root` shows
_PROGRAMS = ("usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32")
_MOST_OPEN = 200  # targets at a time
_FIRST = 256  # a child's descriptor of the first one
_ESCAPE = re.compile(rb"\\([0-7]{3})")


class Mount(NamedTuple):
    """A mounted file system: its type and where it is mounted."""

    kind: str
    point: str


def show(namespace: str, run: str, owner: Identity, groups: list[int], shown: list[Shown]) -> dict[str, str]:
    """Join a mount namespace, and show there what the list of the run in the directory `run` says.

    The process stays in that namespace, so it should do nothing else. Returns the targets that failed, and why. Raises
    `OSError` if the namespace cannot be joined, or anybody but root could change a directory above the run.
    """
    _join(namespace)
    problems: dict[str, str] = {}
    with opened_trusted(run, sticky=True, flags=PATH) as base:
        for (whose, _), lines in groupby(shown, lambda item: (item.whose, os.path.dirname(item.source))):
            for items in _in_parts([*lines]):
                if whose == "root":
                    problems |= _tried(items, partial(_show, base, owner.uid))
                    continue
                try:  # no target of one source lies in another one of it
                    with _opened_by(owner, groups, [item.target for item in items]) as targets:
                        problems |= _tried(items, partial(_show_on, base, targets))
                except OSError as error:
                    problems |= dict.fromkeys((item.target for item in items), error.strerror or str(error))
    return problems


def attach(namespace: int, run: str, paths: list[str]) -> None:
    """Join an open mount namespace, and attach there what is mounted at paths in a directory of root's.

    What is seen there already stays. Mounts that are made on the node later are not seen in a namespace that is
    private. Nobody but root may be able to change a name in a path. The process stays in that namespace. Raises
    `OSError`.
    """
    with opened_trusted(run, sticky=True, flags=PATH) as base:
        clones = {path: linux.clone(_open_below(base, path), below=True) for path in paths}
    _join(linux.proc_path(namespace))
    with opened_trusted(run, sticky=True, flags=PATH) as base:
        for path, clone in clones.items():
            target = _open_below(base, path)
            if mount_id(target) == mount_id(_open_below(base, os.path.dirname(path))):
                linux.attach_on(clone, target)


def _in_parts(items: list[Shown]) -> Iterator[list[Shown]]:
    return (items[start : start + _MOST_OPEN] for start in range(0, len(items), _MOST_OPEN))


def _tried(items: list[Shown], show: Callable[[Shown], None]) -> dict[str, str]:
    """Show each item; return the targets that failed, and why."""
    problems = {}
    for item in items:
        try:
            show(item)
        except OSError as error:
            problems[item.target] = error.strerror or str(error)
    return problems


def _show(run: int, owner: int, item: Shown) -> None:
    """Bind-mount a directory of the job's where only root can change names above; made if missing.

    A second call changes nothing.
    """
    above, name = os.path.split(item.target)
    more = linux.MS_RDONLY if item.mode == "ro" else 0
    with opened_trusted(above, sticky=True, flags=PATH) as folder:
        source = _open_trusted(item.source, run, owner)
        with suppress(FileExistsError):
            os.mkdir(name, 0o755, dir_fd=folder)
        if os.path.samestat(os.fstat(source), os.stat(name, dir_fd=folder, follow_symlinks=False)):
            return
        below = _open_trusted(name, folder, 0)
        linux.mount(linux.proc_path(source, PROC), linux.proc_path(below, PROC), "none", linux.MS_BIND | linux.MS_REC)
        # A bind mount inherits its source's flags; ours are added. Mounts below the source have ours already.
        flags = linux.MS_REMOUNT | linux.MS_BIND | linux.RESTRICTED | more
        # ST_RDONLY and ST_NOEXEC have the values of MS_RDONLY and MS_NOEXEC.
        inherited_flags = os.fstatvfs(source).f_flag & (os.ST_RDONLY | os.ST_NOEXEC)
        shown = _open_trusted(name, folder, owner)  # `below` is the directory beneath the mount
        try:
            linux.mount("none", linux.proc_path(shown, PROC), "none", flags | inherited_flags)
        except OSError:
            linux.detach(shown, PROC)
            raise


def _show_on(run: int, targets: dict[str, int | OSError], item: Shown) -> None:
    """Mount a directory or file read-only, or the target on itself, at an open path whose names users can change."""
    target = targets[item.target]
    if isinstance(target, OSError):
        raise target
    source = os.dup(target) if item.source == NOTHING else _open_below(run, item.source, PATH & ~os.O_DIRECTORY)
    with closing(source):
        mount = linux.clone(source, below=True)
    with closing(mount):
        linux.restrict(mount)
        linux.attach_on(mount, target)


def _open_below(run: int, path: str, flags: int = PATH) -> int:
    """Open a directory, or what `flags` say, that root has put at a path in the run's directory; follow no link."""
    *above, last = path.split("/")
    folder = os.dup(run)
    try:
        for name in above:
            inner = os.open(name, PATH, dir_fd=folder)
            os.close(folder)
            folder = inner
        return os.open(last, flags, dir_fd=folder)
    finally:
        os.close(folder)


@contextmanager
def _opened_by(owner: Identity, groups: list[int], paths: list[str]) -> Iterator[dict[str, int | OSError]]:
    """Open directories or files as a user, who can change the names above them, following no link; yield what is open.

    Where root is nobody, only the user can. A child opens them, and has them as descriptors from `_FIRST` on.
    """
    answers = mmap(-1, len(paths))  # an errno for each, which the child writes

    def enter() -> None:
        surrender(owner, groups)
        for number, path in enumerate(paths):
            try:
                fd = linux.open_without_links(path)
            except OSError as error:
                answers[number] = min(error.errno or errno.EIO, 255)
            else:
                os.dup2(fd, _FIRST + number)
                os.close(fd)

    opened: dict[str, int | OSError] = {}
    with linux.child_in(enter, paths[0]) as pid:
        try:
            for number, path in enumerate(paths):
                opened[path] = _taken(f"{pid}/fd/{_FIRST + number}", path, answers[number])
            yield opened
        finally:
            for fd in opened.values():
                if isinstance(fd, int):
                    os.close(fd)


def _taken(descriptor: str, path: str, number: int) -> int | OSError:
    """Return a child's descriptor of what is at a path, opened; what is wrong if it is none."""
    if number:
        return OSError(number, os.strerror(number), path)
    try:
        fd = os.open(descriptor, os.O_PATH | os.O_CLOEXEC)
    except OSError as error:
        return error
    if os.readlink(f"self/fd/{fd}") != path:
        os.close(fd)
        return PermissionError(errno.EPERM, "it is another one than was opened", path)
    return fd


def new_namespace(hidden: str, shown: str) -> int:
    """Return a descriptor of a new mount namespace without the mounts whose path begins with `hidden`.

    `shown` is still there, with what is mounted below it. Nobody but root may be able to change the names above it, and
    of what is hidden. Raises `OSError`.
    """
    return _made(partial(_hide, hidden, shown))


def new_root(at: str, shown: str) -> int:
    """Return a descriptor of a new mount namespace that holds one directory, and the programs of the system, read-only.

    The directory `shown` is at `/SHOWN`, and can be written. `at` is a directory where the root is mounted, in that
    namespace alone. Nobody but root may be able to change any name of either path. Raises `OSError`.
    """
    return _made(partial(_narrow, at, shown))


def _made(change: Callable[[], None]) -> int:
    """Return a descriptor of a new mount namespace in which `change` has run."""

    def enter() -> None:
        enter_new()
        change()

    with linux.child_in(enter, "mount namespace") as pid:
        return os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)


def _narrow(at: str, shown: str) -> None:
    mounts = {SHOWN: linux.clone(os.open(shown, PATH))}
    links = {}
    for name in _PROGRAMS:
        with suppress(FileNotFoundError):
            if os.path.islink(f"/{name}"):
                links[name] = os.readlink(f"/{name}")
                continue
            mounts[name] = linux.clone(os.open(f"/{name}", PATH), below=True)
            linux.restrict(mounts[name])
    linux.mount("none", at, "tmpfs", linux.RESTRICTED, "size=64k,mode=755")
    os.chdir(at)
    os.mkdir("proc")
    for name, mount in mounts.items():
        os.mkdir(name)
        linux.attach(mount, name)
    for name, target in links.items():
        os.symlink(target, name)
    linux.mount("none", ".", "none", linux.MS_REMOUNT | linux.MS_RDONLY | linux.RESTRICTED)
    libc("pivot_root", b".", b".")  # pivot_root(2): the old root is then on top, and goes
    linux.detach_path(".")
    os.chdir("/")


def _hide(hidden: str, shown: str) -> None:
    gone = "\0"
    for point in _hidden_points(hidden, shown):  # a mount comes before those on it
        if not point.startswith(f"{gone}/"):
            with suppress(OSError):  # whoever removes its directory detaches it here, too
                linux.detach_path(point)
            gone = point
    if left := _hidden_points(hidden, shown):
        raise OSError(errno.EBUSY, "cannot be hidden", left[0])


def _hidden_points(hidden: str, shown: str) -> list[str]:
    hidden, shown = os.path.realpath(hidden), os.path.realpath(shown)
    points = [mount.point for mount in mounts() if mount.point.startswith(hidden)]
    return [point for point in points if point != shown and not point.startswith(f"{shown}/")]


def mounts() -> list[Mount]:
    """Return what is mounted in this process's namespace (proc(5), mountinfo). Asks no file system."""
    with open("/proc/self/mountinfo", "rb") as file:
        rows = [line.split(b" ") for line in file]
    return [Mount(os.fsdecode(row[row.index(b"-") + 1]), _unescaped(row[4])) for row in rows]


def groups() -> dict[str, str]:
    """Return the peer group of each mount point, "" if it has none: what is mounted at one of a group is so at all."""
    with open("/proc/self/mountinfo", "rb") as file:
        rows = [line.split(b" ") for line in file]
    tags = [[tag for tag in row[6 : row.index(b"-")] if tag.startswith(b"shared:")] for row in rows]
    return {_unescaped(row[4]): os.fsdecode(b"".join(found)) for row, found in zip(rows, tags, strict=True)}


def mount_of(path: str) -> Mount:
    """Return the mount of a path without links, so that a file system that hangs is no obstacle.

    In a chroot there may be none.
    """
    above = [mount for mount in mounts() if f"{path}/".startswith(f"{mount.point.rstrip('/')}/")]
    # Of several on one point the last one shows.
    return max(reversed(above), key=lambda mount: len(mount.point), default=Mount("unknown", ""))


def _unescaped(point: bytes) -> str:
    return os.fsdecode(_ESCAPE.sub(lambda match: bytes([int(match[1], 8)]), point))


def enter_new() -> None:
    """Enter a new mount namespace: mounts made in it are visible to this process only and end with it. `OSError`."""
    libc("unshare", CLONE_NEWNS, subject="mount namespace")
    linux.mount("none", "/", "none", linux.MS_REC | linux.MS_PRIVATE)


def _join(namespace: str) -> None:
    """Join the namespace; the working directory is this node's /proc.

    The namespace may have a /proc of its own, which knows only the processes of its PID namespace (namespace/linux,
    CLONE_NEWPID), and so not this one.
    """
    fd, proc = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC), os.open("/proc", PATH)
    libc("setns", fd, CLONE_NEWNS, subject=namespace)
    os.fchdir(proc)


def _open_trusted(name: str, parent: int, owner: int) -> int:
    fd = os.open(name, PATH, dir_fd=parent)
    status = os.fstat(fd)
    # The job's own directory may have any mode, because the directory above is root's.
    if status.st_uid != owner or (owner == 0 and weakness(status, sticky=True)):
        raise PermissionError(errno.EPERM, "others could change it", name)
    return fd
