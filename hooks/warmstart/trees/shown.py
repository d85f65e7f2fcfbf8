"""The part of a run's directory that shows a job its tree. Root's; the ways into the job's namespace read it.

<run>/tree/         root, 0711
    path            where the job sees it: a path without links, and a newline
    copy/           the packed copy is mounted here: its top belongs to the job, 0700, and has the tree as `tree`.
                    Empty: the job reads the tree itself, read-only
"""

from __future__ import annotations

import os

from warmstart.host import linux
from warmstart.host.files import create_file, opened_dir, read_small
from warmstart.lean import suppress
from warmstart.paths import TREE

_PATH, _COPY = "path", "copy"
_LONGEST = 4096  # bytes of a path


def show(run_fd: int, path: str, copy: int | None) -> None:
    """Make a run's part for a tree; `copy` is the root of the mounted copy (O_PATH), if there is one.

    Raises `OSError`; `take_down` and the removal of the run undo what was made.
    """
    os.mkdir(TREE, 0o711, dir_fd=run_fd)
    with opened_dir(TREE, run_fd) as fd:
        os.fchmod(fd, 0o711)
        os.mkdir(_COPY, 0o700, dir_fd=fd)
        if copy is not None:
            clone = linux.clone(copy)
            try:
                with linux.working_in(fd):
                    linux.attach(clone, _COPY)
                    linux.make_private(_COPY)
            finally:
                os.close(clone)
        os.close(create_file(fd, _PATH, os.fsencode(path) + b"\n", 0o444))  # last: it says that the rest is there


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
