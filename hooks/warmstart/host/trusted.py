"""Paths that are safe from other users in every component, and why another path is refused."""

from __future__ import annotations

import errno
import os

from warmstart.host.files import DIRECTORY, ROOT_ALONE, Untrusted, weakness
from warmstart.lean import Collection, Iterator, contextmanager, suppress


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
