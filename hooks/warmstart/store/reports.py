"""Reports: what a job's user may know of its run, for that user's own commands. Written as the store's owner.

    <store>/reports/                            0711
        <uid>/                                  the owner's, 0700, and this uid may list and enter it (acl(5))
            <job>.<run>.<node>                  0644, of one run of an epilog: events, as in a job's view, then its own

The epilog has it written. Nobody but the store's owner writes there,
and no code of root's reads there. The job's id has leading zeros, so that names sort by it. Of a user the last `MOST`
stay, and none longer than `maintenance.reports`.

Readers have their own rights alone: `read` runs as whoever asks.
"""

from __future__ import annotations

import os
import time

from warmstart.host.access import allow_entering
from warmstart.host.files import (
    ensure_dir,
    is_temporary,
    opened_dir,
    read_small,
    remove_older,
    replace_file,
    unlink_if_there,
)
from warmstart.lean import Iterator, suppress
from warmstart.store.layout import store_errors

FOLDER = "reports"
LONGEST = 256 << 10  # bytes of a report
MOST = 1000  # reports of a user
_ABANDONED_S = 86_400.0  # longer than any report takes to be written


def name_of(job_id: int, run_id: str, node: str) -> str:
    """Return the name of a report."""
    return f"{job_id:010}.{run_id}.{node}"


def leave(store: str, uid: int, name: str, text: str, trim: bool) -> None:
    """Write a user's report, in place of one of that name; with `trim` remove the oldest beyond `MOST`.

    Of a text beyond `LONGEST` the last lines are left out. Raises `StoreFull` or `StoreFailed`; the latter also where
    the file system has no access control lists.
    """
    data = text.encode("utf-8", "surrogateescape")
    if len(data) > LONGEST:
        data = data[:LONGEST].rpartition(b"\n")[0] + b"\n"
    folder = f"{store}/{FOLDER}/{uid}"
    with store_errors("write a report for a job's user", folder):
        ensure_dir(f"{store}/{FOLDER}", 0o711)
        with suppress(FileExistsError):
            os.mkdir(folder, 0o700)
        with opened_dir(folder) as fd:
            allow_entering(fd, uid)
            replace_file(fd, name, data, 0o644, durable=False)
            for old in _names(fd)[:-MOST] if trim else ():
                unlink_if_there(old, fd)


def remove_before(store: str, moment: float) -> int:
    """Remove the reports that were written before a time in epoch seconds, and the folders of users without any.

    Also what writers left that died, after a day. Return how many went. Raises `StoreFailed`.
    """
    gone = 0
    with store_errors("remove old reports"), suppress(FileNotFoundError), opened_dir(f"{store}/{FOLDER}") as above:
        for uid in os.listdir(above):
            with suppress(FileNotFoundError, NotADirectoryError), opened_dir(uid, above) as fd:
                gone += remove_older(fd, moment, lambda _: True)
                gone += remove_older(fd, time.time() - _ABANDONED_S, is_temporary)
            with suppress(OSError):  # not empty
                os.rmdir(uid, dir_fd=above)
    return gone


def read(store: str, uid: int, job: int | None = None) -> Iterator[bytes]:
    """Yield a user's reports, the oldest job's first; only those of a `job`, if given.

    Raises `FileNotFoundError` if there is none of the user's, and other `OSError` if they cannot be read.
    """
    beginning = "" if job is None else name_of(job, "", "")[:11]
    with opened_dir(f"{store}/{FOLDER}/{uid}") as fd:
        for name in _names(fd):
            if name.startswith(beginning):
                with suppress(FileNotFoundError):  # removed meanwhile
                    yield read_small(name, LONGEST, fd)


def _names(fd: int) -> list[str]:
    """Return the names of the reports in a user's folder, the oldest job's first."""
    return sorted(name for name in os.listdir(fd) if not is_temporary(name))
