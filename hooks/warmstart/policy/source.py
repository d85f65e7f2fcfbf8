"""Read the policy's files, only if no user but root can change them, and compute their signature.

Root must own the files and every directory above them (docs/threats.md, row 19). Symbolic links are refused in every
component of a path: each link would need its own check that nobody else can change it. But for Kubernetes' of a
ConfigMap: `..data` names the directory, beside it, of the version in force, and the files' own names lead into that.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from warmstart.host import files
from warmstart.policy.compiled import Signature, stamp
from warmstart.policy.invalid import PolicyUnreadable, PolicyUntrusted

LARGEST = 256 << 10
MOST_FILES = 64
_IN_FORCE = "..data"


def conf_d(policy: str) -> str:
    """Return the directory of additional policy files."""
    return os.path.join(os.path.dirname(policy), "conf.d")


def signature(policy: str) -> Signature:
    """Return the stamps of all files that a compilation would read, including missing ones.

    Call it before reading: if a file changes in between, the compiled form counts as stale and is never used wrongly.
    """
    found = _in_force(policy)
    link = [] if found == policy else [f"{os.path.dirname(policy)}/{_IN_FORCE}"]
    extra = conf_d(found)
    return tuple(stamp(path) for path in (found, extra, *(f"{extra}/{name}" for name in _names(extra)), *link))


def read(policy: str, owners: Collection[int] = files.ROOT_ALONE) -> list[tuple[str, str]]:
    """Return (path, text) of policy.yaml, then of conf.d/*.yaml sorted by name.

    Raises `PolicyUnreadable`, or `PolicyUntrusted` if a uid other than `owners` could change a file.
    """
    policy = _in_force(policy)
    directory = os.path.dirname(policy)
    try:
        with _opened(directory, owners) as fd:
            texts = [(policy, _text(fd, directory, os.path.basename(policy), owners))]
            return texts + _additions(fd, directory, owners)
    except files.Untrusted as error:
        raise PolicyUntrusted(path=error.filename, problem=error.strerror) from error
    except OSError as error:
        raise _refused(os.path.join(os.path.dirname(directory), error.filename or directory), error) from error


def _in_force(policy: str) -> str:
    """Return the policy's path, in a ConfigMap that of its version in force."""
    directory, name = os.path.split(policy)
    try:
        version = os.readlink(f"{directory}/{_IN_FORCE}")
    except OSError:
        return policy
    is_one = version[:2] == ".." != version and "/" not in version
    return f"{directory}/{version}/{name}" if is_one else policy


@contextmanager
def _opened(directory: str, owners: Collection[int]) -> Iterator[int]:
    """Open the policy's directory if nobody but `owners` can change it.

    All may write where Kubernetes puts a ConfigMap's versions, but it mounts that read-only, and each version is root's
    alone.
    """
    volume, version = os.path.split(directory)
    if not version.startswith(".."):
        with files.opened_trusted(directory, owners) as fd:
            yield fd
        return
    above, name = os.path.split(volume)
    with files.opened_trusted(above, owners, sticky=True) as parent, files.opened_dir(name, parent) as fd:
        if not os.fstatvfs(fd).f_flag & os.ST_RDONLY:
            _require_trust(fd, volume, owners)
        with files.opened_dir(version, fd) as found:
            _require_trust(found, directory, owners)
            yield found


def _names(directory: str | int) -> list[str]:
    try:
        names = os.listdir(directory)
    except OSError:
        return []
    return sorted(name for name in names if name.endswith(".yaml") and not name.startswith("."))


def ignored(policy: str) -> list[str]:
    """Return files in conf.d that look like policies and are not read, because their names do not end in .yaml."""
    extra = conf_d(_in_force(policy))
    try:
        names = sorted(os.listdir(extra))
    except OSError:
        return []
    return [
        f"{extra}/{name}" for name in names if name.lower().endswith((".yml", ".yaml")) and name not in _names(extra)
    ]


def read_draft(path: str, text: bytes) -> tuple[str, str]:
    """Return (path, text) of a policy that is not read from a file. Raises `PolicyUnreadable` if it is too large."""
    if len(text) > LARGEST:
        raise PolicyUnreadable(path=path, problem=f"larger than {LARGEST >> 10} KiB")
    return path, text.decode("utf-8", "surrogateescape")


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
    # An invalid byte becomes a lone surrogate, which the parser refuses with its position.
    return data.decode("utf-8", "surrogateescape")


def _require_trust(fd: int, path: str, owners: Collection[int]) -> None:
    # A sticky directory is not trusted either: any user could add a file.
    if problem := files.weakness(os.fstat(fd), owners):
        raise PolicyUntrusted(path=path, problem=problem)


def _refused(path: str, error: OSError) -> PolicyUnreadable | PolicyUntrusted:
    # For a link open(2) fails with ENOTDIR if O_DIRECTORY and O_NOFOLLOW are set, with ELOOP if only O_NOFOLLOW is.
    if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EINVAL):
        return PolicyUntrusted(path=path, problem="is a symbolic link, or not a regular file or directory")
    return PolicyUnreadable(path=path, problem=os.strerror(error.errno or 0))
