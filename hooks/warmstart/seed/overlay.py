"""Show bundles to a job through an overlay with a private upper layer (docs/reference/profiles.md, ADR 0006).

    <run>/.seed/            root, 0700
        <subdir>/           one per profile that is seeded by an overlay
            upper  work     what the job writes; the job owns upper, 0700, which gives the overlay its owner and mode
            whiteouts       a layer that hides what the job must not see (`layers` has why one is enough)
            merged          the overlay for root; no job can reach it or mount over it
            layers          until then, clones of the bundles, one on the other
    <run>/cache/<subdir>    the same overlay for the job

All paths are below the run's directory, so no upper layer or mount point is used twice. Everything is mounted while
root still owns `cache` (docs/threats.md, row 4). The clones are unmounted at once, because the overlay has its own.
Each is made private before the next one lies on it: a clone is a peer of the bundle's own mount where that is shared
(mount_namespaces(7)), so what is mounted on it would cover the bundle for all other jobs. Imports ctypes, so a warm
prolog that seeds nothing must not import this module.
"""

from __future__ import annotations

import errno
import os
import stat

from warmstart.errors import ResourceError
from warmstart.host import linux
from warmstart.host.deadline import after
from warmstart.host.files import ensure_dir, opened_dir
from warmstart.host.identity import Identity
from warmstart.lean import Iterator, NamedTuple, Sequence, contextmanager, suppress
from warmstart.paths import SEED

MOST_WHITEOUTS = 20_000  # a namespace that needs more should be compacted; until then it is extracted
WHITEOUTS = "whiteouts"  # directory and name of that layer
LAYERS = "layers"
# Explicit, because the kernel's defaults differ: an overlay must not depend on xattrs of directories (redirect_dir),
# and the upper layer must have all content of its files (metacopy). `volatile`: a job's cache is not needed after a
# crash, and without this option each unmount syncs the whole file system of the workspace. `xino=on`: else files of one
# overlay have several device numbers, and an inode number in a listing is not that of stat; `auto`, the default of some
# kernels, gives up because a squashfs has no UUID. Kernels that know `volatile` (5.10) know it (4.17).
_OPTIONS = "upperdir=upper,workdir=work,redirect_dir=nofollow,metacopy=off,index=off,volatile,xino=on"
REMOVAL_S = 2.0  # nothing has been written to the overlay yet


class OverlayUnavailable(ResourceError):
    """An overlay cannot be mounted on this node; the bundles are extracted instead."""

    code = "overlay-unavailable"
    template = "{profile}: {problem}"
    hint = "check that the kernel has overlay, squashfs and loop devices (/dev/loop-control); jobs start slower"


class JobIds(NamedTuple):
    """A job's uid and gid, and the user namespace that maps root's files to them in all overlays of the job."""

    uid: int
    gid: int
    namespace: int  # descriptor; -1 if the kernel gives none


@contextmanager
def job_ids(job: Identity) -> Iterator[JobIds]:
    """Yield the ids of a job, whose namespace is there for a `with`."""
    namespace = -1
    with suppress(OSError):
        namespace = linux.user_namespace(job.uid, job.gid)
    try:
        yield JobIds(job.uid, job.gid, namespace)
    finally:
        if namespace >= 0:
            os.close(namespace)


def show(run_fd: int, subdir: str, layers: Sequence[int], hidden: Sequence[str], job: JobIds) -> bool:
    """Mount an overlay of `layers` (O_PATH descriptors of mounted bundles, topmost first) at `cache/<subdir>`.

    `cache/<subdir>` must exist, and root must own it and its parents. `hidden` are paths that the job must not see.
    Returns True if seeded files belong to the job by id-mapping. If the kernel cannot map ids, they belong to root with
    modes 0666 and 0777, and it returns False.

    Raises `OverlayUnavailable` if the overlay cannot be mounted, and leaves nothing of it.
    """
    try:
        if job.namespace >= 0:
            with suppress(OSError):  # there is no cheaper probe for id-mapping than the attempt
                _show(run_fd, subdir, layers, hidden, job)
                return True
        _show(run_fd, subdir, layers, hidden, job._replace(namespace=-1))
        return False
    except OSError as error:
        raise OverlayUnavailable(profile=subdir, problem=error.strerror or str(error)) from error


def _show(run_fd: int, subdir: str, layers: Sequence[int], hidden: Sequence[str], job: JobIds) -> None:
    ensure_dir(SEED, 0o700, run_fd)
    with opened_dir(SEED, run_fd) as seed:
        os.mkdir(subdir, 0o700, dir_fd=seed)
        try:
            with opened_dir(subdir, seed) as profile_dir, linux.working_in(profile_dir):
                for name in ("work", "merged", "upper"):
                    os.mkdir(name, 0o700)
                os.chown("upper", job.uid, job.gid)
                with _attached(layers, job.namespace) as names:
                    if hidden:
                        _make_whiteouts(hidden, job)
                        names.insert(0, WHITEOUTS)
                    options = f"lowerdir={':'.join(names)},{_OPTIONS}"
                    linux.mount("warmstart", "merged", "overlay", linux.RESTRICTED, options)
                linux.make_private("merged")
                linux.bind("merged", f"../../cache/{subdir}")
        except BaseException:
            from warmstart.host.remove import remove_tree

            remove_tree(seed, subdir, after(REMOVAL_S))
            raise


@contextmanager
def _attached(layers: Sequence[int], namespace: int) -> Iterator[list[str]]:
    """Attach a clone of each layer for a `with`, with the ids of a namespace, if there is one; yield paths to them.

    An overlay takes only layers that are attached. A directory for each would have to be made and removed.
    """
    os.mkdir(LAYERS, 0o700)
    clones: list[int] = []
    try:
        for layer in layers:
            if clones:
                linux.make_private(LAYERS)
            clones.append(linux.clone(layer))
            if namespace >= 0:
                linux.map_ids(clones[-1], namespace)
            linux.attach(clones[-1], LAYERS)
        yield [linux.proc_path(clone) for clone in clones]
    finally:
        for clone in clones:
            os.close(clone)
    for _ in layers:
        linux.unmount_here(LAYERS)
    os.rmdir(LAYERS)


def _make_whiteouts(hidden: Sequence[str], job: JobIds) -> None:
    """Make a whiteout at each path. The job owns the parents: a merged directory has the owner of its topmost one."""
    if len(hidden) > MOST_WHITEOUTS:
        raise OSError(errno.E2BIG, f"{len(hidden)} files of its bundles must be hidden, the limit is {MOST_WHITEOUTS}")
    made: set[str] = set()
    for path in hidden:
        folders = path.split("/")[:-1]
        for depth in range(len(folders) + 1):
            folder = "/".join([WHITEOUTS, *folders[:depth]])
            if folder not in made:
                os.mkdir(folder, 0o755)
                os.chmod(folder, 0o755)  # whatever the umask is
                os.chown(folder, job.uid, job.gid)
                made.add(folder)
        os.mknod(f"{WHITEOUTS}/{path}", stat.S_IFCHR, os.makedev(0, 0))
