"""The job's view: `view/<jobid>/`, the only state of warmstart on a node that jobs read; and what its run shows it.

Directory and files are root's, so nothing that a job does there can keep them from being removed (docs/threats.md, row
21). The files can be read by the job's uid alone (`access.allow_reading`), so a job that sets SLURM_JOB_ID to another
job's id can read nothing there (row 17). The directory's name is the id that the job's tasks see.
"""

from __future__ import annotations

import errno
import os

from warmstart.errors import ResourceError
from warmstart.host.access import allow_reading, share_reading
from warmstart.host.deadline import after
from warmstart.host.files import closing, create_file, ensure_dir, opened_dir, read_small, unlink_if_there, write_all
from warmstart.host.remove import remove_tree
from warmstart.lean import TYPE_CHECKING, sha256, suppress
from warmstart.paths import MOUNTED, SHOWN, Shown
from warmstart.run.state import Run, using_state

if TYPE_CHECKING:
    from warmstart.paths import Installation

REMOVAL_SECONDS = 2.0  # a view has a few files of root's
LONGEST = 1 << 20  # bytes of a file, as in packaging/spank/view.c
MOST_FILES = 500  # a step may name its image and its nodes in many ways
VERDICT = "verdict"  # the file with the reason why the job must fail
NOTICE = "notice"  # the file with what a task prolog or the SPANK plugin prints: what is cold, and why
LEFT_ALONE = "left-alone"  # the empty file of a job that wants nothing (--no-warm): its image is left to pyxis, too
TREE = "tree"  # what is mounted for a job that shares it with others, in a directory of the job's
MORE = "more\n"  # the last line of a file of `caches_of`: a step that asks root may get more than this says
EVENTS = "events"  # the file with those of the prolog's events that the job's user may read, for `warmstart explain`


class NotShown(ResourceError):
    """What the run has for the job could not be mounted where the job would see it."""

    code = "not-shown"
    template = "cannot mount {what}: {problem}"
    hint = (
        "the job runs without it: run `warmstart doctor`; with job_container paths.cache has to be outside of Dirs, in "
        "directories of root's"
    )


def publish(directory: str, run: Run, files: dict[str, str]) -> None:
    """Replace the job's view by one with these files (name → text). Raises `FileSystemBroken` or `StateFull`."""
    fresh = _fresh(run)
    with using_state(directory), opened_dir(directory) as parent:
        remove_tree(parent, fresh, after(REMOVAL_SECONDS))
        try:
            os.mkdir(fresh, 0o700, dir_fd=parent)
            with opened_dir(fresh, parent) as fd:
                for file, text in files.items():
                    _add(fd, run, file, text)
                os.fchmod(fd, 0o711)
            remove_tree(parent, str(run.view_id), after(REMOVAL_SECONDS))
            os.rename(fresh, str(run.view_id), src_dir_fd=parent, dst_dir_fd=parent)
        except OSError:
            with suppress(OSError):
                remove_tree(parent, fresh, after(REMOVAL_SECONDS))
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


def text(directory: str, run: Run, name: str) -> str:
    """Return a file of the job's view; "" if it cannot be read."""
    with suppress(OSError):
        return read_small(f"{directory}/{run.view_id}/{name}", LONGEST).decode("utf-8", "surrogateescape")
    return ""


def remove(directory: str, run: Run) -> None:
    """Remove the job's view, and an unfinished one that a killed prolog left. Missing ones are no error.

    Raises `OSError` if one cannot be removed.
    """
    with opened_dir(directory) as parent:
        for name in (str(run.view_id), _fresh(run)):
            remove_tree(parent, name, after(REMOVAL_SECONDS))


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


def shown(run: str) -> list[Shown]:
    """Return what a run shows. Raises `OSError`; a line of another form is `EINVAL`."""
    try:
        text = os.fsdecode(read_small(f"{run}/{SHOWN}", LONGEST))
        return [Shown(*line.split("\t")) for line in text.split("\n")[:-1]]
    except FileNotFoundError:
        return []
    except TypeError as error:
        raise OSError(errno.EINVAL, "a line has another number of fields", f"{run}/{SHOWN}") from error


def mount_for(run_fd: int, name: str, mount_fd: int, owner: tuple[int, int]) -> str:
    """Attach a detached mount where only the job's user can get to it; return its path in the run's directory.

    <run>/mounted/NAME/        a read-only tmpfs that belongs to the `owner` (uid and gid), who alone can enter it
                       tree/   the mount, below an overlay of root's: many share it (`linux.attach_covered`)

    Raises `OSError`; what is mounted then is taken down with the run (`take_down`).
    """
    from warmstart.host import linux

    ensure_dir(MOUNTED, 0o711, run_fd)
    with opened_dir(MOUNTED, run_fd) as fd:
        os.mkdir(name, 0o700, dir_fd=fd)
        with linux.working_in(fd):
            linux.mount("warmstart", name, "tmpfs", linux.RESTRICTED, "size=4k,nr_inodes=8,mode=0500")
            linux.make_private(name)
            os.mkdir(f"{name}/{TREE}", 0o500)
            linux.attach_covered(mount_fd, f"{name}/{TREE}")
            os.chown(name, *owner)  # not before: a job that runs could put a link there, or keep what lies below
            linux.mount("none", name, "none", linux.MS_REMOUNT | linux.MS_RDONLY | linux.RESTRICTED)
    return f"{MOUNTED}/{name}/{TREE}"


def take_down(run_fd: int) -> None:
    """Unmount what is mounted for a run to show; a process that still reads it keeps it."""
    from warmstart.host import linux

    with suppress(OSError), opened_dir(MOUNTED, run_fd) as fd:
        for name in os.listdir(fd):
            with suppress(OSError):  # EINVAL: nothing is mounted
                linux.unmount(name, fd)


def read(installation: Installation, job: str, name: str) -> bytes | None:
    """Return a file of the job's view; None if there is none that the caller may read."""
    with suppress(OSError):
        return read_small(f"{installation.view}/{job}/{name}", LONGEST)
    return None


def _fresh(run: Run) -> str:
    return f".new-{run.name}"


def _add(fd: int, run: Run, file: str, text: str) -> None:
    with closing(create_file(fd, file, text.encode("utf-8", "surrogateescape"), 0o400)) as handle:
        allow_reading(handle, run.uid, run.gid)
