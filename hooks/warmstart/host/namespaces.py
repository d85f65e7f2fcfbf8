"""Mount namespaces: bind-mount a directory in another one, or enter a new one. Runs as root. Not on the hot path.

A descriptor from before setns(2) belongs to the old namespace and cannot be bind-mounted in the new one. So all paths
are walked again after joining: name by name, following no link, and only where nobody but root can change them.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress

from warmstart.host import linux
from warmstart.host.files import PATH, opened_trusted, weakness

_CLONE_NEWNS = 0x20000


def show(namespace: str, parent: str, name: str, owner: int, target: str) -> None:
    """Join a mount namespace, and bind-mount `parent`/`name`, owned by uid `owner`, recursively at `target` there.

    The process stays in that namespace, so it should do nothing else. Creates `target` if it is missing; a second call
    changes nothing. Raises `PermissionError` if `name` has another owner, or anybody but root could change a directory
    above.
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
    # A bind mount inherits its source's flags; ours are added. Mounts below the source have ours already.
    flags = linux.MS_REMOUNT | linux.MS_BIND | linux.RESTRICTED
    # ST_RDONLY and ST_NOEXEC have the values of MS_RDONLY and MS_NOEXEC.
    inherited_flags = os.fstatvfs(source).f_flag & (os.ST_RDONLY | os.ST_NOEXEC)
    shown = _open_trusted(name, folder, owner)  # `below` is the directory beneath the mount
    try:
        linux.mount("none", linux.proc_path(shown), "none", flags | inherited_flags)
    except OSError:
        linux.detach(shown)
        raise


def enter_new() -> None:
    """Enter a new mount namespace: mounts made in it are visible to this process only and end with it. `OSError`."""
    linux.check(linux.libc().unshare(_CLONE_NEWNS), "mount namespace")
    linux.mount("none", "/", "none", linux.MS_REC | linux.MS_PRIVATE)


def _join(namespace: str) -> None:
    fd = os.open(namespace, os.O_RDONLY | os.O_CLOEXEC)
    linux.check(linux.libc().setns(fd, _CLONE_NEWNS), namespace)
    os.chdir("/")


def _open_trusted(name: str, parent: int, owner: int) -> int:
    fd = os.open(name, PATH, dir_fd=parent)
    found = os.fstat(fd)
    # The job's own directory may have any mode, because the directory above is root's.
    if found.st_uid != owner or (owner == 0 and weakness(found, sticky=True)):
        raise PermissionError(errno.EPERM, "others could change it", name)
    return fd
