"""The job's view: `view/<jobid>/`, the only state of warmstart on a node that jobs read.

Directory and files are root's, so nothing that a job does there can keep them from being removed (docs/threats.md, row
21). The files can be read by the job's uid alone (`access.allow_reading`), so a job that sets SLURM_JOB_ID to another
job's id can read nothing there (row 17). The directory's name is the id that the job's tasks see.
"""

from __future__ import annotations

import os

from warmstart.host.access import allow_reading
from warmstart.host.deadline import after
from warmstart.host.files import closing, create_file, opened_dir, read_small, unlink_if_there
from warmstart.lean import sha256, suppress
from warmstart.run.state import Run, using_state

_REMOVAL_S = 2.0  # a view has a few files of root's
LONGEST = 1 << 20  # bytes of a file, as in packaging/spank/view.c
MOST_FILES = 500  # a step may name its image and its nodes in many ways
VERDICT = "verdict"  # the file with the reason why the job must fail
NOTICE = "notice"  # the file with what a task prolog or the SPANK plugin prints: what is cold, and why
LEFT_ALONE = "left-alone"  # the empty file of a job that wants nothing (--no-warm): its image is left to pyxis, too
MORE = "more\n"  # the last line of a file of `caches_of`: a step that asks root may get more than this says
EVENTS = "events"  # the file with those of the prolog's events that the job's user may read, for `warmstart explain`


def publish(directory: str, run: Run, files: dict[str, str]) -> None:
    """Replace the job's view by one with these files (name → text). Raises `FileSystemBroken` or `StateFull`."""
    fresh = _fresh(run)
    with using_state(directory), opened_dir(directory) as parent:
        try:
            os.mkdir(fresh, 0o700, dir_fd=parent)
            with opened_dir(fresh, parent) as fd:
                for file, text in files.items():
                    _add(fd, run, file, text)
                os.fchmod(fd, 0o711)
            _remove(parent, str(run.view_id))
            os.rename(fresh, str(run.view_id), src_dir_fd=parent, dst_dir_fd=parent)
        except OSError:
            with suppress(OSError):
                _remove(parent, fresh)
            raise


def add(directory: str, run: Run, name: str, text: str) -> None:
    """Add a file to the job's view, in place of one of that name, unless it has `MOST_FILES`.

    Raises `FileSystemBroken` or `StateFull`.
    """
    fresh = f".{name}"
    with using_state(directory), suppress(FileNotFoundError), opened_dir(f"{directory}/{run.view_id}") as fd:
        if len(os.listdir(fd)) < MOST_FILES:
            unlink_if_there(fresh, fd)
            _add(fd, run, fresh, text)
            os.rename(fresh, name, src_dir_fd=fd, dst_dir_fd=fd)


def caches_of(reference: str, nodes: str) -> str:
    """Return the name of the file that says which caches a step has, and where its image is: `KEY PATH`, `MORE`.

    `nodes` are the step's, as Slurm tells the step (`job.STEP_NODES`).
    """
    return f"caches-{sha256(f'{reference} {nodes}'.encode('utf-8', 'surrogateescape')).hexdigest()[:32]}"


def remove(directory: str, run: Run) -> None:
    """Remove the job's view, and an unfinished one that a killed prolog left. Missing ones are no error.

    Raises `OSError` if one cannot be removed.
    """
    with opened_dir(directory) as parent:
        for name in (str(run.view_id), _fresh(run)):
            _remove(parent, name)


def hide(directory: str, job: int | str) -> None:
    """Remove a view where a hook makes none, if it can: a later run of the job must not take it for its own."""
    with suppress(OSError), opened_dir(directory) as parent:
        _remove(parent, str(job))


def read(directory: str, job: int | str, name: str) -> bytes | None:
    """Return a file of a job's view, by the id that its tasks see; None if there is none that the caller may read."""
    with suppress(OSError):
        return read_small(f"{directory}/{job}/{name}", LONGEST)
    return None


def _remove(parent: int, name: str) -> None:
    """Remove a view, if there is one; in a prolog mostly there is none."""
    with suppress(FileNotFoundError):
        os.stat(name, dir_fd=parent, follow_symlinks=False)
        from warmstart.host.remove import remove_tree

        remove_tree(parent, name, after(_REMOVAL_S))


def _fresh(run: Run) -> str:
    return f".new-{run.name}"


def _add(fd: int, run: Run, file: str, text: str) -> None:
    with closing(create_file(fd, file, text.encode("utf-8", "surrogateescape"), 0o400)) as handle:
        allow_reading(handle, run.uid, run.gid)
