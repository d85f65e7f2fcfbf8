"""The policy's files: their signature, and reading them only if nobody but root can change them.

Files and their parents must be root's (docs/threats.md, row 19). Symbolic links are refused everywhere on the way:
each would need its own proof that nobody else can move it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection

from warmstart.host import files
from warmstart.policy.compiled import Signature, stamp
from warmstart.policy.invalid import PolicyUnreadable, PolicyUntrusted

LARGEST = 256 << 10
MOST_FILES = 64


def conf_d(policy: str) -> str:
    """Return the directory of the policy's additions."""
    return os.path.join(os.path.dirname(policy), "conf.d")


def signature(policy: str) -> Signature:
    """Return the stamps of everything that a compilation would read; what is missing has one, too.

    Take it before reading: a file that changes after it makes the compiled form stale, never wrong.
    """
    extra = conf_d(policy)
    return tuple(stamp(path) for path in (policy, extra, *(f"{extra}/{name}" for name in _names(extra))))


def read(policy: str, owners: Collection[int] = files.ROOT_ALONE) -> list[tuple[str, str]]:
    """Return (path, text) of policy.yaml and then of conf.d/*.yaml in the order of their names.

    Raises `PolicyUnreadable`, or `PolicyUntrusted` where another uid than `owners` could change a byte.
    """
    directory = os.path.dirname(policy)
    try:
        with files.opened_trusted(directory, owners) as fd:
            texts = [(policy, _text(fd, directory, os.path.basename(policy), owners))]
            return texts + _additions(fd, directory, owners)
    except files.Untrusted as error:
        raise PolicyUntrusted(path=error.filename, problem=error.strerror) from error
    except OSError as error:
        raise _refused(error.filename, error) from error


def _names(directory: str | int) -> list[str]:
    try:
        names = os.listdir(directory)
    except OSError:
        return []
    return sorted(name for name in names if name.endswith(".yaml") and not name.startswith("."))


def _additions(fd: int, directory: str, owners: Collection[int]) -> list[tuple[str, str]]:
    path = f"{directory}/conf.d"
    try:
        extra = os.open("conf.d", files.DIRECTORY, dir_fd=fd)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise _refused(path, error) from error
    try:
        _require_trust(extra, path, owners)
        names = _names(extra)
        if len(names) > MOST_FILES:
            raise PolicyUnreadable(path=path, problem=f"more than {MOST_FILES} *.yaml files")
        return [(f"{path}/{name}", _text(extra, path, name, owners)) for name in names]
    finally:
        os.close(extra)


def _text(dir_fd: int, directory: str, name: str, owners: Collection[int]) -> str:
    path = f"{directory}/{name}"
    try:
        fd = files.open_regular(name, dir_fd)
    except OSError as error:
        raise _refused(path, error) from error
    try:
        _require_trust(fd, path, owners)
        data = files.read_up_to(fd, LARGEST + 1)
    except OSError as error:
        raise _refused(path, error) from error
    finally:
        os.close(fd)
    if len(data) > LARGEST:
        raise PolicyUnreadable(path=path, problem=f"larger than {LARGEST >> 10} KiB")
    # A byte that is not UTF-8 becomes a lone surrogate, which the parser refuses with its position.
    return data.decode("utf-8", "surrogateescape")


def _require_trust(fd: int, path: str, owners: Collection[int]) -> None:
    # Not even a sticky directory: anybody could add a file to it.
    if problem := files.weakness(os.fstat(fd), owners):
        raise PolicyUntrusted(path=path, problem=problem)


def _refused(path: str, error: OSError) -> PolicyUnreadable | PolicyUntrusted:
    # O_DIRECTORY with O_NOFOLLOW says ENOTDIR for a link, O_NOFOLLOW alone ELOOP.
    if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EINVAL):
        return PolicyUntrusted(path=path, problem="is a symbolic link or not of the kind it should be")
    return PolicyUnreadable(path=path, problem=os.strerror(error.errno or 0))
