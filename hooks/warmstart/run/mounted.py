"""What is mounted in a run's directory for its job to see, of which others have the same."""

from __future__ import annotations

import os

from warmstart.host import linux
from warmstart.host.files import ensure_dir, opened_dir
from warmstart.lean import suppress
from warmstart.paths import MOUNTED

TREE = "tree"  # what is mounted for a job that shares it with others, in a directory of the job's


def mount_for(run_fd: int, name: str, mount_fd: int, owner: tuple[int, int]) -> str:
    """Attach a detached mount where only the job's user can get to it; return its path in the run's directory.

    <run>/mounted/NAME/        a read-only tmpfs that belongs to the `owner` (uid and gid), who alone can enter it
                       tree/   the mount, below an overlay of root's: many share it (`attach_covered`)

    Raises `OSError`; what is mounted then is taken down with the run (`take_down`).
    """
    ensure_dir(MOUNTED, 0o711, run_fd)
    with opened_dir(MOUNTED, run_fd) as fd:
        os.mkdir(name, 0o700, dir_fd=fd)
        with linux.working_in(fd):
            linux.mount("warmstart", name, "tmpfs", linux.RESTRICTED, "size=4k,nr_inodes=8,mode=0500")
            linux.make_private(name)
            os.mkdir(f"{name}/{TREE}", 0o500)
            attach_covered(mount_fd, f"{name}/{TREE}")
            os.chown(name, *owner)  # not before: a job that runs could put a link there, or keep what lies below
            linux.mount("none", name, "none", linux.MS_REMOUNT | linux.MS_RDONLY | linux.RESTRICTED)
    return f"{MOUNTED}/{name}/{TREE}"


def attach_covered(mount_fd: int, target: str) -> None:
    """Attach a detached mount at an empty directory, below a read-only overlay: its files look alike, and are others.

    A lease, a lock or a watch is an inode's, and a read-only mount keeps nobody from one: of a file that many are
    shown, one of them could stop the others. The directory's mount must be private, and have room for another one;
    nobody else may get to it yet, because what lies below is seen there for a moment.
    """
    covered = f"{target}.covered"
    os.mkdir(covered, 0o700)
    linux.attach(mount_fd, covered)
    # A single layer is refused. What else an overlay reads of attributes nobody has set here (seed/overlay.py).
    options = f"lowerdir={covered}:{target},redirect_dir=nofollow,metacopy=off,xino=on"
    linux.mount("warmstart", target, "overlay", linux.MS_RDONLY | linux.RESTRICTED, options)
    linux.unmount_here(covered)  # the overlay has its own
    os.rmdir(covered)


def take_down(run_fd: int) -> None:
    """Unmount what is mounted for a run to show; a process that still reads it keeps it."""
    with suppress(OSError), opened_dir(MOUNTED, run_fd) as fd:
        for name in os.listdir(fd):
            with suppress(OSError):  # EINVAL: nothing is mounted
                linux.unmount(name, fd)
