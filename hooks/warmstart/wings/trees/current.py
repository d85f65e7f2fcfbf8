"""Look at a tree with the rights of the job's user: where it is, whose, and whether it has changed since.

What a package manager changes decides, by a few stat calls and without a walk: pip and uv add, rename or remove a name
in `site-packages` with every package, also with an editable one; conda, mamba and pixi in `conda-meta`. Of the top its
names count. A file that somebody edits in place shows in none of them, so a user can name a file to look at, too.
"""

from __future__ import annotations

import errno
import os

from warmstart.errors import ResourceError
from warmstart.host import linux
from warmstart.host.trusted import unknown_group
from warmstart.lean import Iterator, NamedTuple, dumps, sha256, suppress
from warmstart.policy.shared import SharedPath, covering, is_below

_MARKS = ("pyvenv.cfg", "conda-meta", "conda-meta/history", "conda-meta/state")
_LIBRARIES = ("lib", "lib64")
_PYTHONS = ("python", "pypy", "graalpy")
_ENVIRONMENTS = "envs"  # where conda keeps them below its own
_MOST_IN_TOP = 1000  # names
_MOST = 64  # of them, names in `lib` that begin as a Python's, and directories of packages that are looked at


class TreeUnusable(ResourceError):
    """A tree that a job asks for cannot be shown to it."""

    code = "tree-unusable"
    template = "tree {tree}: {problem}"
    hint = "name a directory that you can read, below one of trees.prefixes; one that changes is packed when it rests"


class Look(NamedTuple):
    """A tree as it is now."""

    path: str  # without links
    stamp: str  # SHA-256 of what shows changes
    changed: float  # when the youngest of that was changed, by the file system's clock
    owner: int  # uid of its top
    group: int  # gid of its top
    marker: str = ""  # the file that the job named, a path in the tree
    identity: str = ""  # of its top: `linux.identity`


def look(tree: str, prefixes: list[str], marker: str, shared: list[SharedPath]) -> Look:
    """Return a tree below one of the prefixes as it is now; `marker` is a path in it, or "".

    Of a tree that is one of `shared` no marker counts: whoever could choose one would make a copy for each. Raises
    `TreeUnusable`.
    """
    try:
        path = os.path.realpath(tree, strict=True)
        if not is_below(path, prefixes):
            raise TreeUnusable(tree=tree, problem=f"it leads to {path}, which is below none of trees.prefixes")
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)  # who may list it may look
        try:
            is_shared = covering(path, shared) is not None
            return _look(fd, tree, path, "" if is_shared else marker, needs_marks=not is_shared)
        finally:
            os.close(fd)
    except OSError as error:
        why = unknown_group(tree) if isinstance(error, PermissionError) else ""
        raise TreeUnusable(tree=tree, problem=f"{error.strerror or error}{why}") from error


def _look(fd: int, tree: str, path: str, marker: str, *, needs_marks: bool) -> Look:
    top = os.fstat(fd)
    names = ["", *_names(fd, "")]
    environments = _listed(fd, _ENVIRONMENTS, "")
    if len(environments) > _MOST:
        raise TreeUnusable(tree=tree, problem=f"it has {len(environments)} environments; name one of them")
    marks = [(name, status) for name in names if (status := _status(fd, name))]
    if len(marks) > 1:
        names = [name for below in environments for name in _names(fd, f"{_ENVIRONMENTS}/{below}/")]
        marks += [(name, status) for name in names if (status := _status(fd, name))]
    if marker:
        status = _status(fd, marker)
        if status is None:
            where = f"{path}/{marker}"
            why = "" if os.access(os.path.dirname(where), os.X_OK) else unknown_group(where)
            raise TreeUnusable(tree=tree, problem=f"it has no {marker}{why}")
        marks.append((marker, status))
    elif len(marks) == 1 and needs_marks:
        problem = "it is no environment of pip, uv or conda; name a file that changes with it: tree=PATH:FILE"
        raise TreeUnusable(tree=tree, problem=problem)
    facts: list[object] = [
        (name, status.st_ino, status.st_size, status.st_mtime_ns, status.st_mode, status.st_uid, status.st_gid)
        for name, status in marks
    ]
    if len(in_top := _in_top(fd)) <= _MOST_IN_TOP:
        facts[0] = ("", top.st_ino, in_top, top.st_mode, top.st_uid, top.st_gid)
    changed = max(status.st_mtime for _, status in marks)
    stamp = sha256(dumps(facts).encode()).hexdigest()
    return Look(path, stamp, changed, top.st_uid, top.st_gid, marker, linux.identity(fd))


def _in_top(fd: int) -> list[str]:
    """Return the names in the top, at most one too many. Its time changes, too, when a program tries to write there."""
    with os.scandir(fd) as items:
        return sorted(item.name for item, _ in zip(items, range(_MOST_IN_TOP + 1), strict=False))


def _names(fd: int, top: str) -> Iterator[str]:
    """Yield what package managers change in the environment at `top`."""
    for name in _MARKS:
        yield top + name
    for library in _LIBRARIES:
        for python in _listed(fd, top + library, _PYTHONS)[:_MOST]:
            yield f"{top}{library}/{python}/site-packages"


def _listed(fd: int, directory: str, starts: str | tuple[str, ...]) -> list[str]:
    """Return the names in a directory that start so; none if it is a link, as lib64 to lib, or cannot be listed."""
    with suppress(OSError):
        found = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
        try:
            return sorted(name for name in os.listdir(found) if name.startswith(starts))
        finally:
            os.close(found)
    return []


def _status(fd: int, name: str) -> os.stat_result | None:
    """Return what a name leads to, None if that is not there for its user. Packages may lie behind a link."""
    try:
        return os.stat(name, dir_fd=fd) if name else os.fstat(fd)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.ELOOP):
            return None
        raise
