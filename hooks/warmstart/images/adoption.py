"""Take over an image that another launcher left, by copy (threats, row 2). Runs as the store's owner, in the worker.

Only from directories that the policy names and nobody but the owners it names, the store's owner and root can write,
and only files of those owners. The bytes are copied to an inode of root's on this node; that one is validated
and published as an import's result is. An adopted image is known by its own SHA-256, which no registry's digest
stands for, so it answers references by tag only.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from typing import NamedTuple

from warmstart.host.files import PATH, Untrusted, copy_hashed, open_regular, opened_dir, opened_trusted, weakness
from warmstart.images.launchers import IMAGE
from warmstart.policy.compiled import Adopt


class Taken(NamedTuple):
    """A launcher's image that was copied."""

    path: str
    sha256: str
    changed: float  # its mtime, seconds since the epoch


def fetch(target: int, places: Sequence[Adopt], names: Sequence[str], not_before: float) -> Taken | str:
    """Copy the first image that may be taken into the descriptor `target`.

    A file counts if it was last changed at `not_before` (seconds since the epoch) or later. Returns a string if none
    was taken: why one that is there may not be, "" if there is none.
    """
    problem = ""
    for directory, owners in places:
        for name in names:
            try:
                return _fetch(target, directory, name + IMAGE, (0, os.geteuid(), *owners), not_before)
            except FileNotFoundError:
                continue
            except OSError as error:
                problem = f"{directory}/{name}{IMAGE}: {error.strerror}"
                os.ftruncate(target, 0)
                os.lseek(target, 0, os.SEEK_SET)
    return problem


def _fetch(target: int, directory: str, name: str, owners: tuple[int, ...], not_before: float) -> Taken:
    with opened_dir(directory) as folder:
        fd = open_regular(name, folder)
        try:
            _check_directories(directory, folder, owners)
            status = os.fstat(fd)
            if weakness(status, owners) or status.st_nlink != 1:
                raise _refusal(f"is uid {status.st_uid}'s, mode {stat.S_IMODE(status.st_mode):o}")
            if status.st_mtime < not_before:
                raise FileNotFoundError  # older than a tag may be: as good as none
            sha256 = copy_hashed(fd, target).sha256
            if _stamp(os.fstat(fd)) != _stamp(status):
                raise _refusal("changed while it was read")
        finally:
            os.close(fd)
    return Taken(os.path.join(directory, name), sha256, status.st_mtime)


def _check_directories(directory: str, folder: int, owners: tuple[int, ...]) -> None:
    try:
        with opened_trusted(directory, owners, flags=PATH) as trusted:
            is_same = os.path.samestat(os.fstat(trusted), os.fstat(folder))
    except Untrusted as error:
        raise _refusal(f"is below {error.filename}, which {error.strerror}") from error
    if not is_same:
        raise _refusal("was moved while it was read")


def _stamp(status: os.stat_result) -> tuple[int, ...]:
    return (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def _refusal(problem: str) -> OSError:
    return OSError(errno.EPERM, problem)
