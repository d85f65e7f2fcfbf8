"""Look at a tree with the rights of the job's user: where it is, whose, and whether it has changed since.

What a package manager changes decides, by a few stat calls and without a walk: pip and uv add, rename or remove a
directory of `site-packages` with every package, also with an editable one; conda writes `conda-meta/history`. A file
that somebody edits in place shows in none of them, so a user can name a file to look at, too.
"""

from __future__ import annotations

import errno
import os

from warmstart.errors import ResourceError
from warmstart.lean import Iterator, NamedTuple, dumps, sha256, suppress

_MARKS = ("pyvenv.cfg", "conda-meta", "conda-meta/history")
_LIBRARIES = ("lib", "lib64")
_PYTHON = "python3"
_MOST_LIBRARIES = 64  # names in `lib` that begin with it


class TreeUnusable(ResourceError):
    """A tree that a job asks for cannot be shown to it."""

    code = "tree-unusable"
    template = "tree {tree}: {problem}"
    hint = "name a directory that you can read, below one of the policy's trees.prefixes"


class Look(NamedTuple):
    """A tree as it is now."""

    path: str  # without links
    stamp: str  # SHA-256 of what shows changes
    changed: float  # when the youngest of that was changed, by the file system's clock
    marker: str = ""  # the file that the job named, a path in the tree


def look(tree: str, prefixes: list[str], marker: str) -> Look:
    """Return a tree below one of the prefixes as it is now; `marker` is a path in it, or "". Raises `TreeUnusable`."""
    try:
        path = os.path.realpath(tree, strict=True)
        if not any(path.startswith(f"{prefix}/") for prefix in prefixes):
            raise TreeUnusable(tree=tree, problem=f"it leads to {path}, which is below none of trees.prefixes")
        fd = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise TreeUnusable(tree=tree, problem=error.strerror or str(error)) from error
    try:
        return _look(fd, tree, path, marker)
    finally:
        os.close(fd)


def _look(fd: int, tree: str, path: str, marker: str) -> Look:
    if os.fstat(fd).st_uid == 0:  # the system's: what programs with more rights read must not be another version
        raise TreeUnusable(tree=tree, problem="it belongs to root")
    marks = [(name, status) for name in ("", *_MARKS, *_packages(fd)) if (status := _status(fd, name))]
    if marker:
        status = _status(fd, marker)
        if status is None:
            raise TreeUnusable(tree=tree, problem=f"it has no {marker}")
        marks.append((marker, status))
    elif len(marks) == 1:
        problem = "it is no environment of pip, uv or conda; name a file that changes with it: tree=PATH:FILE"
        raise TreeUnusable(tree=tree, problem=problem)
    facts = [(name, status.st_ino, status.st_size, status.st_mtime_ns) for name, status in marks]
    stamp = sha256(dumps(facts).encode()).hexdigest()
    return Look(path, stamp, max(status.st_mtime for _, status in marks), marker)


def _packages(fd: int) -> Iterator[str]:
    """Yield where packages lie in an environment: `lib/python3.12/site-packages`."""
    for library in _LIBRARIES:
        with suppress(OSError):
            found = os.open(library, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
            try:
                names = sorted(name for name in os.listdir(found) if name.startswith(_PYTHON))
            finally:
                os.close(found)
            for name in names[:_MOST_LIBRARIES]:
                yield f"{library}/{name}/site-packages"


def _status(fd: int, name: str) -> os.stat_result | None:
    try:
        return os.stat(name, dir_fd=fd, follow_symlinks=False) if name else os.fstat(fd)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            return None
        raise
