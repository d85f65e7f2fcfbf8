"""Read the policy's files, only if no user but root can change them, and compute their signature.

Root must own the files and every directory above them (docs/threats.md, row 19). Symbolic links are refused in every
component of a path: each link would need its own check that nobody else can change it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterator, Sequence

from warmstart.host import files
from warmstart.policy.invalid import PolicyUnreadable, PolicyUntrusted
from warmstart.policy.keys import Signature, stamp

LARGEST = 256 << 10
MOST_FILES = 64


def signature(policy: str) -> Signature:
    """Return the stamps of all files that a compilation would read, including missing ones.

    Call it before reading: if a file changes in between, the compiled form counts as stale and is never used wrongly.
    """
    extra, names = _additions(policy)
    return tuple(stamp(path) for path in (policy, extra, *(f"{extra}/{name}" for name in names)))


def read(policy: str, owners: Collection[int] = files.ROOT_ALONE) -> list[tuple[str, str]]:
    """Return (path, text) of policy.yaml, then of conf.d/*.yaml sorted by name.

    Raises `PolicyUnreadable`, or `PolicyUntrusted` if a uid other than `owners` could change a file.
    """
    directory, name = os.path.split(policy)
    texts = list(_texts(directory, [name], owners))
    extra, names = _additions(policy)
    if len(names) > MOST_FILES:
        raise PolicyUnreadable(path=extra, problem=f"more than {MOST_FILES} *.yaml files")
    return [*texts, *_texts(extra, names, owners)] if os.path.lexists(extra) else texts


def ignored(policy: str) -> list[str]:
    """Return files in conf.d that look like policies and are not read, because their names do not end in .yaml."""
    extra, names = _additions(policy)
    others = sorted({*_listed(extra)} - {*names})
    return [f"{extra}/{name}" for name in others if name.lower().endswith((".yml", ".yaml"))]


def read_draft(path: str, text: bytes) -> tuple[str, str]:
    """Return (path, text) of a policy that is not read from a file. Raises `PolicyUnreadable` if it is too large."""
    if len(text) > LARGEST:
        raise PolicyUnreadable(path=path, problem=f"larger than {LARGEST >> 10} KiB")
    # An invalid byte becomes a lone surrogate, which the parser refuses with its position.
    return path, text.decode("utf-8", "surrogateescape")


def _additions(policy: str) -> tuple[str, list[str]]:
    """Return the directory of additional policy files, and their names in order."""
    extra = f"{os.path.dirname(policy)}/conf.d"
    return extra, [name for name in _listed(extra) if name.endswith(".yaml") and not name.startswith(".")]


def _listed(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def _texts(directory: str, names: Sequence[str], owners: Collection[int]) -> Iterator[tuple[str, str]]:
    at = directory
    try:
        with files.opened_trusted(directory, owners) as parent:
            for name in names:
                at = f"{directory}/{name}"
                yield read_draft(at, _data(parent, name, at, owners))
    except files.Untrusted as error:
        raise PolicyUntrusted(path=error.filename, problem=error.strerror) from error
    except OSError as error:
        path = os.path.join(directory, error.filename or at)
        # For a link open(2) fails with ENOTDIR if O_DIRECTORY and O_NOFOLLOW are set, with ELOOP if only the latter is.
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EINVAL):
            problem = "is a symbolic link, or not a regular file or directory"
            raise PolicyUntrusted(path=path, problem=problem) from error
        raise PolicyUnreadable(path=path, problem=os.strerror(error.errno or 0)) from error


def _data(parent: int, name: str, path: str, owners: Collection[int]) -> bytes:
    fd = files.open_regular(name, parent)
    try:
        if problem := files.weakness(os.fstat(fd), owners):
            raise PolicyUntrusted(path=path, problem=problem)
        return files.read_up_to(fd, LARGEST + 1)
    finally:
        os.close(fd)
