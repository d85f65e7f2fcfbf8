"""The job's view: `view/<jobid>/`, the only state of warmstart on a node that jobs read.

Directory and files are root's, so nothing that a job does there can keep them from being removed (docs/threats.md, row
21). The files can be read by the job's uid alone (`files.allow_reading`), so a job that sets SLURM_JOB_ID to another
job's id can read nothing there (row 17). The directory's name is the id that the job's tasks see.
"""

from __future__ import annotations

import os

from warmstart.host.deadline import after
from warmstart.host.files import allow_reading, names_in, opened_dir, read_small, remove_tree, write_all
from warmstart.lean import TYPE_CHECKING, Iterator, suppress
from warmstart.record import Record, using_state

if TYPE_CHECKING:
    from warmstart.paths import Installation

REMOVAL_SECONDS = 2.0  # a view has a few files of root's
LONGEST = 1 << 20  # bytes of a file, as in packaging/spank/view.c
VERDICT = "verdict"  # the file with the reason why the job must fail
EVENTS = "events"  # the file with those of the prolog's events that the job's user may read, for `warmstart explain`


def publish(directory: str, record: Record, files: dict[str, str]) -> None:
    """Replace the job's view by one with these files (name → text). Raises `StateUnusable` or `StateFull`."""
    fresh = _fresh(record)
    with using_state(directory), opened_dir(directory) as parent:
        remove_tree(parent, fresh, after(REMOVAL_SECONDS))
        os.mkdir(fresh, 0o700, dir_fd=parent)
        try:
            _fill(parent, fresh, record, files)
            remove_tree(parent, str(record.view_id), after(REMOVAL_SECONDS))
            os.rename(fresh, str(record.view_id), src_dir_fd=parent, dst_dir_fd=parent)
        except OSError:
            with suppress(OSError):
                remove_tree(parent, fresh, after(REMOVAL_SECONDS))
            raise


def remove(directory: str, record: Record) -> None:
    """Remove the job's view, and an unfinished one that a killed prolog left. Missing ones are no error.

    Raises `OSError` if one cannot be removed.
    """
    with opened_dir(directory) as parent:
        for name in (str(record.view_id), _fresh(record)):
            remove_tree(parent, name, after(REMOVAL_SECONDS))


def files(installation: Installation, job: str, name: str) -> Iterator[bytes]:
    """Yield a file of the job's views on all nodes of this host, as far as the caller may read them.

    A step does not know its node for sure: SLURMD_NODENAME may still be the batch host's.
    """
    with suppress(OSError):
        for node in names_in(installation.var):
            with suppress(OSError):
                yield read_small(f"{installation.node(node).view}/{job}/{name}", LONGEST)


def _fresh(record: Record) -> str:
    return f".new-{record.run_name}"


def _fill(parent: int, name: str, record: Record, files: dict[str, str]) -> None:
    with opened_dir(name, parent) as fd:
        for file, text in files.items():
            handle = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400, dir_fd=fd)
            try:
                write_all(handle, text.encode("utf-8", "surrogateescape"))
                allow_reading(handle, record.uid, record.gid)
            finally:
                os.close(handle)
        os.fchmod(fd, 0o711)
