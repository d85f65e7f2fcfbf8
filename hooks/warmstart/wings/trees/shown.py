"""A packed copy, mounted in a run's directory for the job to see.

<run>/mounted/tree/    a directory that belongs to the job and that nobody else can enter; it has the copy as `tree`

A user's own copy has such a top itself. One that many share is root's: its tree is mounted in a small tmpfs, which is
read-only, and the job's.
"""

from __future__ import annotations

import os

from warmstart.host import linux
from warmstart.host.files import PATH, ensure_dir, opened_dir
from warmstart.paths import MOUNTED

_COPY, _TREE = "tree", "tree/tree"
SOURCE = f"{MOUNTED}/{_TREE}"  # of the tree, in the run's directory


def mount(run_fd: int, copy: int, own: tuple[int, int] | None = None) -> None:
    """Mount a copy for a run; `copy` is the root of the packed copy (O_PATH).

    `own` are the job's uid and gid, for a copy that many share. Raises `OSError`; what is mounted then is taken down
    with the run (`view.take_down`).
    """
    ensure_dir(MOUNTED, 0o711, run_fd)
    with opened_dir(MOUNTED, run_fd) as fd:
        os.mkdir(_COPY, 0o700, dir_fd=fd)
        with linux.working_in(fd):
            if own:
                _mount_below(copy, own)
            else:
                _mount(copy, _COPY)


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
