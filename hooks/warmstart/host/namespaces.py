"""Mount namespaces: show a directory at another place in one that is not ours. Never on a warm hook's path.

Descriptors from before setns(2) belong to the old namespace, and what they name can't be bound in the new one, so all
paths are walked again there: name by name, through no link, and only where nobody but root can change them.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from warmstart.host import linux
from warmstart.host.files import PATH, opened_trusted, weakness

_CLONE_NEWNS = 0x20000


def show(namespace: str, parent: str, name: str, owner: int, target: str) -> None:
    """Join a mount namespace for good, and bind `parent`/`name`, uid `owner`'s, with all below it at `target` there.

    For a process that does nothing else. `target` is made where it is missing; a second call changes nothing.
    `PermissionError` where `name` is not the owner's, or somebody but root could change a directory above.
    """
    _join(namespace)
    above, target_name = os.path.split(target)
    with (
        opened_trusted(parent, sticky=True, flags=PATH) as base,
        opened_trusted(above, sticky=True, flags=PATH) as folder,
    ):
        _bind(_open_trusted(name, base, owner), target_name, folder, owner)


def _bind(source: int, name: str, folder: int, owner: int) -> None:
    with suppress(FileExistsError):
        os.mkdir(name, 0o755, dir_fd=folder)
    if os.path.samestat(os.fstat(source), os.stat(name, dir_fd=folder, follow_symlinks=False)):
        return
    below = _open_trusted(name, folder, 0)
    linux.mount(linux.proc_path(source), linux.proc_path(below), "none", linux.MS_BIND | linux.MS_REC)
    # A bind mount has its source's flags, to which ours are added. What is mounted below has them already.
    flags = linux.MS_REMOUNT | linux.MS_BIND | linux.RESTRICTED
    # ST_RDONLY and ST_NOEXEC have the numbers of MS_RDONLY and MS_NOEXEC.
    inherited_flags = os.fstatvfs(source).f_flag & (os.ST_RDONLY | os.ST_NOEXEC)
    shown = _open_trusted(name, folder, owner)  # a descriptor from before the mount leads beneath it
    try:
        linux.mount("none", linux.proc_path(shown), "none", flags | inherited_flags)
    except OSError:
        linux.detach(shown)
        raise


def enter_new() -> None:
    """Enter a mount namespace of our own: nobody else sees what this process mounts, and it ends with it. `OSError`."""
    linux.check(linux.libc().unshare(_CLONE_NEWNS), "mount namespace")
    linux.mount("none", "/", "none", linux.MS_REC | linux.MS_PRIVATE)


def _join(namespace: str) -> None:
    fd = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    linux.check(linux.libc().setns(fd, _CLONE_NEWNS), namespace)
    os.chdir("/")


def _open_trusted(name: str, parent: int, owner: int) -> int:
    fd = os.open(name, PATH, dir_fd=parent)
    found = os.fstat(fd)
    # What is the job's own may have any mode: the directory above is root's.
    if found.st_uid != owner or (owner == 0 and weakness(found, sticky=True)):
        raise PermissionError(errno.EPERM, "others could change it", name)
    return fd
