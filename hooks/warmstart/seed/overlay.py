"""Show bundles to a job through an overlay with a private upper layer (docs/reference/profiles.md, ADR 0006).

    <run>/.seed/            root, 0700
        <subdir>/           one per profile that is seeded by an overlay
            upper  work     what the job writes; the job owns upper, 0700, which gives the overlay its owner and mode
            whiteouts       a layer that hides what the job must not see (`layers` has why one is enough)
            merged          the overlay for root; no job can reach it or mount over it
    <run>/cache/<subdir>    the same overlay for the job

All paths are below the run's directory, so no upper layer or mount point is used twice. Everything is mounted while
root still owns `cache` (docs/threats.md, row 4). An overlay takes layers that are attached somewhere: the clones of the
bundles lie on each other at `cache/<subdir>` until it is mounted, and it is told them by descriptor. Then they are
detached, because the overlay has its own; directories for them would have to be made and removed. Imports ctypes, so a
warm prolog that seeds nothing must not import this module.
"""

from __future__ import annotations

import errno
import os
import stat
import time

from warmstart.errors import ResourceError
from warmstart.host import linux
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import PATH, ensure_dir, mount_id, opened_dir, remove_tree
from warmstart.host.identity import Identity
from warmstart.host.untrusted import TurnedAway, open_directory
from warmstart.lean import Iterator, NamedTuple, Sequence, contextmanager, suppress
from warmstart.paths import SEED

MOST_LAYERS = 16
MOST_BUNDLES = MOST_LAYERS - 1  # one layer is for whiteouts
MOST_WHITEOUTS = 20_000  # a namespace that needs more should be compacted; until then it is extracted
WHITEOUTS = "whiteouts"  # directory and name of that layer
# Explicit, because the kernel's defaults differ: an overlay must not depend on xattrs of directories (redirect_dir),
# and the upper layer must have all content of its files (metacopy). `volatile`: a job's cache is not needed after a
# crash, and without this option each unmount syncs the whole file system of the workspace. `xino=on`: else files of one
# overlay have several device numbers, and an inode number in a listing is not that of stat; `auto`, the default of some
# kernels, gives up because a squashfs has no UUID. Kernels that know `volatile` (5.10) know it (4.17).
_OPTIONS = "upperdir=upper,workdir=work,redirect_dir=nofollow,metacopy=off,index=off,volatile,xino=on"
_BUSY_PAUSE = 0.005  # short, to hit the moment between two files of a process that writes one after the other
_LAST_TRY = 1.0  # seconds to wait for a moment without writers when an overlay is removed
_REMOVAL = 2.0  # seconds; nothing has been written to the overlay yet


class OverlayUnavailable(ResourceError):
    """An overlay cannot be mounted on this node; the bundles are extracted instead."""

    code = "overlay-unavailable"
    template = "{profile}: {problem}"
    hint = "check that the kernel has overlay, squashfs and loop devices (/dev/loop-control); jobs start slower"


class CacheInUse(ResourceError):
    """A process outlived its job, and still writes to the job's cache or uses it."""

    code = "cache-in-use"
    template = "{what}: a process still {problem}"
    hint = "which process of the job outlived it? Slurm's ProctrackType should end them all"


class JobIds:
    """A job's uid and gid, and the user namespace that maps root's files to them in all overlays of the job.

    The namespace is made at its first use. On exit from the `with` statement its descriptor is closed.
    """

    def __init__(self, job: Identity) -> None:
        self.uid, self.gid = job.uid, job.gid
        self._namespace = -1

    def __enter__(self) -> JobIds:
        return self

    def __exit__(self, *_: object) -> None:
        if self._namespace >= 0:
            os.close(self._namespace)

    def namespace(self) -> int:
        """Return a descriptor of the user namespace; the caller must not close it. Raises `OSError`."""
        if self._namespace < 0:
            self._namespace = linux.user_namespace(self.uid, self.gid)
        return self._namespace


class OpenedOverlay(NamedTuple):
    """An overlay, open to be harvested; read-only unless its job runs."""

    upper: int  # descriptor of the upper layer: names that the job made or changed, whiteouts included
    merged: int  # descriptor of the overlay, to read content


def show(run_fd: int, subdir: str, layers: Sequence[int], hidden: Sequence[str], job: JobIds) -> bool:
    """Mount an overlay of `layers` (O_PATH descriptors of mounted bundles, topmost first) at `cache/<subdir>`.

    `cache/<subdir>` must exist, and root must own it and its parents. `hidden` are paths that the job must not see.
    Returns True if seeded files belong to the job by id-mapping. If the kernel cannot map ids, they belong to root with
    modes 0666 and 0777, and it returns False.

    Raises `OverlayUnavailable` if the overlay cannot be mounted, and leaves nothing of it.
    """
    try:
        with suppress(OSError):  # there is no cheaper probe for id-mapping than the attempt
            return _show(run_fd, subdir, layers, hidden, job, mapped=True)
        return _show(run_fd, subdir, layers, hidden, job, mapped=False)
    except OSError as error:
        raise OverlayUnavailable(profile=subdir, problem=error.strerror or str(error)) from error


def _show(  # noqa: PLR0917 - the arguments of `show`, and whether to map ids
    run_fd: int, subdir: str, layers: Sequence[int], hidden: Sequence[str], job: JobIds, mapped: bool
) -> bool:
    ensure_dir(SEED, 0o700, run_fd)
    with opened_dir(SEED, run_fd) as seed:
        os.mkdir(subdir, 0o700, dir_fd=seed)
        try:
            with opened_dir(subdir, seed) as profile_dir, linux.working_in(profile_dir):
                for name in ("work", "merged", "upper"):
                    os.mkdir(name, 0o700)
                os.chown("upper", job.uid, job.gid)
                target = f"../../cache/{subdir}"
                with _attached(layers, target, job if mapped else None) as names:
                    if hidden:
                        _make_whiteouts(hidden, job)
                        names.insert(0, WHITEOUTS)
                    linux.mount(
                        "warmstart", "merged", "overlay", linux.RESTRICTED, f"lowerdir={':'.join(names)},{_OPTIONS}"
                    )
                linux.make_private("merged")
                linux.bind("merged", target)
        except BaseException:
            remove_tree(seed, subdir, after(_REMOVAL))
            raise
    return mapped


@contextmanager
def _attached(layers: Sequence[int], target: str, job: JobIds | None) -> Iterator[list[str]]:
    """Attach a clone of each layer at `target` for a `with`, id-mapped if `job` is given; yield names for them."""
    clones: list[int] = []
    try:
        for layer in layers:
            clones.append(linux.clone(layer))
            if job:
                linux.map_ids(clones[-1], job.namespace())
            linux.attach(clones[-1], target)
        yield [linux.proc_path(clone) for clone in clones]
    finally:
        for clone in reversed(clones):
            linux.detach(clone)
            os.close(clone)


def _make_whiteouts(hidden: Sequence[str], job: JobIds) -> None:
    """Make a whiteout at each path. The job owns the parents: a merged directory has the owner of its topmost one."""
    if len(hidden) > MOST_WHITEOUTS:
        raise OSError(errno.E2BIG, f"{len(hidden)} files of its bundles must be hidden, the limit is {MOST_WHITEOUTS}")
    made = {""}
    _make_folder(WHITEOUTS, job)
    for path in hidden:
        folders = path.split("/")[:-1]
        for depth in range(1, len(folders) + 1):
            folder = "/".join(folders[:depth])
            if folder not in made:
                _make_folder(f"{WHITEOUTS}/{folder}", job)
                made.add(folder)
        os.mknod(f"{WHITEOUTS}/{path}", stat.S_IFCHR, os.makedev(0, 0))


def _make_folder(path: str, job: JobIds) -> None:
    os.mkdir(path, 0o755)
    os.chmod(path, 0o755)  # whatever the umask is
    os.chown(path, job.uid, job.gid)


@contextmanager
def opened_overlay(run_fd: int, profile: str, freeze: Deadline | None) -> Iterator[OpenedOverlay | None]:
    """Make a profile's overlay read-only and open it; yields None if it has none (extracted, or not seeded).

    With `freeze` None it is left to its job, which runs, as it is. Raises `CacheInUse` if a process still has a file
    open for writing at that deadline.
    """
    with _opened(run_fd, profile) as opened:
        if opened is None:
            yield None
            return
        profile_dir, merged = opened
        if freeze and not _make_read_only(merged, freeze):
            problem = "writes to the job's cache; nothing of it is harvested"
            raise CacheInUse(what=f"profile {profile}", problem=problem)
        with opened_dir("upper", profile_dir) as upper, opened_dir(".", merged) as root:
            yield OpenedOverlay(upper, root)


def was_shown(run_fd: int, subdir: str) -> bool:
    """Return whether a profile of a run was seeded by an overlay, mounted or not."""
    try:
        os.stat(f"{SEED}/{subdir}", dir_fd=run_fd, follow_symlinks=False)  # root's, as all that lies above it
    except FileNotFoundError:
        return False
    return True


def _make_read_only(merged: int, deadline: Deadline) -> bool:
    """Make an overlay read-only; return False if a file is still open for writing at the deadline."""
    while True:
        try:
            linux.make_read_only(merged)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            if deadline.expired():
                return False
            time.sleep(_BUSY_PAUSE)
        else:
            return True


def take_down(run_fd: int) -> list[str]:
    """Unmount all overlays of a run; return the subdirs whose overlay a process still used.

    Each is first made read-only if possible, so that such a process changes nothing more. The caller then removes the
    run's tree; that removes the mount points and so detaches the mounts in other jobs' namespaces. Can be repeated,
    and handles whatever an interrupted prolog left.
    """
    return [subdir for subdir in _subdirs(run_fd) if not _take_one_down(run_fd, subdir)]


def _take_one_down(run_fd: int, subdir: str) -> bool:
    """Unmount one overlay; return whether it was unused."""
    with _opened(run_fd, subdir) as opened:
        if opened is None:
            return True
        with suppress(OSError):  # the disk below fails: unmount it all the same
            _make_read_only(opened[1], after(_LAST_TRY))
    unused = _unmount_from_cache(run_fd, subdir)
    with opened_dir(SEED, run_fd) as seed, opened_dir(subdir, seed) as profile_dir:
        return linux.unmount("merged", profile_dir) and unused


def _subdirs(run_fd: int) -> list[str]:
    try:
        with opened_dir(SEED, run_fd) as seed:
            return sorted(os.listdir(seed))
    except FileNotFoundError:
        return []


def discard(run_fd: int, subdir: str) -> None:
    """Unmount and remove one profile's overlay in the prolog, before the job can use it."""
    with suppress(FileNotFoundError), opened_dir(SEED, run_fd) as seed:
        _unmount_from_cache(run_fd, subdir)
        remove_tree(seed, subdir, after(_REMOVAL))


def _unmount_from_cache(run_fd: int, subdir: str) -> bool:
    """Unmount the overlay at `cache/<subdir>`; return whether it was unused.

    The job controls everything below `cache`, so the mount point may be covered or gone. Whatever stays mounted is
    detached with the removal of the tree.
    """
    try:
        cache = open_directory("cache", run_fd, mount_id(run_fd))
    except TurnedAway:
        return True
    try:
        return linux.unmount(subdir, cache)
    except OSError:
        return True
    finally:
        os.close(cache)


@contextmanager
def _opened(run_fd: int, subdir: str) -> Iterator[tuple[int, int] | None]:
    """Open `.seed/<subdir>` and, with O_PATH, the root of its overlay; yields None if none is mounted."""
    if not was_shown(run_fd, subdir):
        yield None
        return
    with opened_dir(SEED, run_fd) as seed, opened_dir(subdir, seed) as profile_dir:
        try:
            merged = os.open("merged", PATH, dir_fd=profile_dir)
        except FileNotFoundError:
            merged = -1
        if merged < 0:
            yield None
            return
        try:
            yield None if mount_id(merged) == mount_id(profile_dir) else (profile_dir, merged)
        finally:
            os.close(merged)
