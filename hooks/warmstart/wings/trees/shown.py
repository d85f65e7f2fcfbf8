"""A packed copy, mounted in a run's directory for the job to see.

<run>/mounted/tree/    a directory that belongs to the job and that nobody else can enter; it has the copy as `tree`

A user's own copy has such a top itself. One that many share is root's (`mounted.mount_for`).
"""

from __future__ import annotations

import os

from warmstart.host import linux
from warmstart.host.files import PATH, ensure_dir, opened_dir
from warmstart.paths import MOUNTED
from warmstart.run import mounted

_COPY = "tree"
SOURCE = f"{MOUNTED}/{_COPY}/tree"  # of the tree, in the run's directory


def mount(run_fd: int, copy: int, own: tuple[int, int] | None = None) -> None:
    """Mount a copy for a run; `copy` is the root of the packed copy (O_PATH).

    `own` are the job's uid and gid, for a copy that many share. Raises `OSError`; what is mounted then is taken down
    with the run (`mounted.take_down`).
    """
    if own:
        tree = os.open("tree", PATH, dir_fd=copy)
        clone = linux.clone(tree)
        try:
            mounted.mount_for(run_fd, _COPY, clone, own)
        finally:
            os.close(clone)
            os.close(tree)
        return
    ensure_dir(MOUNTED, 0o711, run_fd)
    with opened_dir(MOUNTED, run_fd) as fd:
        os.mkdir(_COPY, 0o700, dir_fd=fd)
        clone = linux.clone(copy)
        try:
            with linux.working_in(fd):
                linux.attach(clone, _COPY)
                linux.make_private(_COPY)
        finally:
            os.close(clone)
