"""What a job asked to keep: its run's `tmp/` stays on the node after it, for `limits.keep`.

    <run>/.kept     root, 0600: its mtime is when the job ended

The run's directory is root's, so only root can have made the mark. The cache is never kept: it is code, and what
is good of it was harvested. Until there is a mark the job's record names the run.
"""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress

from warmstart.host.deadline import Deadline
from warmstart.host.files import opened_dir
from warmstart.host.trees import remove_tree

MARK = ".kept"
KEPT = ("tmp", MARK)


def keep(node: int, run_name: str, deadline: Deadline) -> bool:
    """Leave of a run what is kept and remove the rest; a second call goes on, and the time runs from the first one.

    `node` is the descriptor of the directory that the run's is in. False: the disk has no room for a mark, so
    nothing can be kept. Raises `OSError` as `remove_tree` does.
    """
    with opened_dir(run_name, node) as run:
        for name in os.listdir(run):
            if name not in KEPT:
                remove_tree(run, name, deadline)
        try:
            with suppress(FileExistsError):
                os.close(os.open(MARK, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600, dir_fd=run))
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                return False
            raise
        os.fchmod(run, 0o711)
    return True


def since(node: int, run_name: str) -> float | None:
    """Return when a run's job ended, in seconds since the epoch; None where nothing of it is kept."""
    try:
        with opened_dir(run_name, node) as run:
            found = os.stat(MARK, dir_fd=run, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_mtime if stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() else None
