"""The list of what a job sees of its run: who mounts it reads no more than this (`paths.Shown`)."""

from __future__ import annotations

import errno
import os

from warmstart.errors import ResourceError
from warmstart.host.access import share_reading
from warmstart.host.files import closing, read_small, write_all
from warmstart.paths import SHOWN, Shown

_LONGEST = 1 << 20  # bytes of the list, as in packaging/spank/view.c


class NotShown(ResourceError):
    """What the run has for the job could not be mounted where the job would see it."""

    code = "not-shown"
    template = "cannot mount {what}: {problem}"
    hint = (
        "the job runs without it: run `warmstart doctor`; with job_container paths.cache has to be outside of Dirs, in "
        "directories of root's"
    )


def show(run_fd: int, shown: Shown, uid: int) -> None:
    """Add to what a run shows: a whole line or, on a full disk, none. Raises `OSError`: `EINVAL` for its path.

    Nobody but the job's user can read it, where the file system has access control lists.
    """
    line = "\t".join(shown)
    if line.count("\t") != len(shown) - 1 or "\n" in line or "" in shown:
        raise OSError(errno.EINVAL, "its path has a tab or a newline", shown.target)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    with closing(os.open(SHOWN, flags, 0o600, dir_fd=run_fd)) as fd:
        if not (before := os.fstat(fd).st_size):
            share_reading(fd, uid)
        try:
            write_all(fd, os.fsencode(f"{line}\n"))
        except BaseException:
            os.ftruncate(fd, before)
            raise


def shown_by(run: str) -> list[Shown]:
    """Return what a run shows. Raises `OSError`; a line of another form is `EINVAL`."""
    try:
        text = os.fsdecode(read_small(f"{run}/{SHOWN}", _LONGEST))
        return [Shown(*line.split("\t")) for line in text.split("\n")[:-1]]
    except FileNotFoundError:
        return []
    except TypeError as error:
        raise OSError(errno.EINVAL, "a line has another number of fields", f"{run}/{SHOWN}") from error
