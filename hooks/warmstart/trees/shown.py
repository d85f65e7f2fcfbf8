"""The part of a run's directory that shows a job its tree. Root's; the ways into the job's namespace read it.

<run>/tree/         root, 0711
    path            where the job sees it: a path without links, and a newline
    seen            which directory was there (`current.Look.identity`): of another one there is no copy
    copy/           the packed copy, below a directory that belongs to the job and that nobody else can enter; it has
                    the tree as `tree`. Empty: the job reads the tree itself, read-only

A user's own copy has such a top itself. One that many share is root's: its tree is mounted in a small tmpfs, which is
read-only, and the job's.
"""

from __future__ import annotations

import os

from warmstart.host import linux
from warmstart.host.files import PATH, create_file, opened_dir, read_small
from warmstart.lean import suppress
from warmstart.paths import TREE

_PATH, _SEEN, _COPY, _TREE = "path", "seen", "copy", "copy/tree"
_LONGEST_SEEN = 80  # bytes; a process of the user's says it
_LONGEST = 4096  # bytes of a path


def show(run_fd: int, path: str, seen: str, copy: int | None, own: tuple[int, int] | None = None) -> None:
    """Make a run's part for a tree; `copy` is the root of the mounted copy (O_PATH), if there is one.

    `own` are the job's uid and gid, for a copy that many share.

    Raises `OSError`; `take_down` and the removal of the run undo what was made.
    """
    os.mkdir(TREE, 0o700, dir_fd=run_fd)
    with opened_dir(TREE, run_fd) as fd:
        os.mkdir(_COPY, 0o700, dir_fd=fd)
        if copy is not None:
            with linux.working_in(fd):
                if own:
                    _mount_below(copy, own)
                else:
                    _mount(copy, _COPY)
        os.fchmod(fd, 0o711)  # now that nothing in it changes any more
        os.close(create_file(fd, _SEEN, f"{seen[:_LONGEST_SEEN]}\n".encode("ascii", "replace"), 0o444))
        os.close(create_file(fd, _PATH, os.fsencode(path) + b"\n", 0o444))  # last: it says that the rest is there


def _mount(source: int, target: str) -> None:
    clone = linux.clone(source)
    try:
        linux.attach(clone, target)
        linux.make_private(target)
    finally:
        os.close(clone)


def _mount_below(copy: int, own: tuple[int, int]) -> None:
    options = "size=4k,nr_inodes=8,mode=0500,uid={},gid={}".format(*own)
    linux.mount("warmstart", _COPY, "tmpfs", linux.RESTRICTED, options)
    linux.make_private(_COPY)
    os.mkdir(_TREE, 0o500)
    linux.mount("none", _COPY, "none", linux.MS_REMOUNT | linux.MS_RDONLY | linux.RESTRICTED)
    tree = os.open("tree", PATH, dir_fd=copy)
    try:
        _mount(tree, _TREE)
    finally:
        os.close(tree)


def copy_of(run: str) -> str:
    """Return where the packed copy's files are, if it is mounted."""
    return f"{run}/{TREE}/{_COPY}/tree"


def path_of(run: str) -> str:
    """Return where a job sees its tree, "" if it has none. Raises `OSError`."""
    with suppress(FileNotFoundError), opened_dir(f"{run}/{TREE}") as fd:
        return os.fsdecode(read_small(_PATH, _LONGEST, fd)).removesuffix("\n")
    return ""


def take_down(run_fd: int) -> None:
    """Unmount the copy; a process that still reads it keeps it."""
    with suppress(OSError), opened_dir(TREE, run_fd) as fd:  # EINVAL: nothing is mounted
        linux.unmount(_COPY, fd)
