"""A job's view of the node's bundles: an overlay with an upper layer of the job's own (docs/seeding.md, ADR 0006).

    <run>/.seed/            root, 0700
        <subdir>/           one for each profile that is seeded so
            upper  work     what the job writes; upper looks like the job's own 0700 directory, and so does the view
            whiteouts       hide what the job must not see
            merged          the view, where root reads it; no job can reach or cover it
            l0 … l15        the layers, from the top, until the overlay has them
    <run>/cache/<subdir>    the same view, where the job has it

All names carry the run, so no upper and no mount point is used twice. Everything is mounted while `cache` is still
root's (docs/threats.md, row 4). The layers' clones are unmounted at once: the overlay holds its own. Imports ctypes,
so never on a warm path without seeding.

Whiteouts. An overlay merges: where two bundles hold an entry with different files, it would show the files of both.
One layer of whiteouts above all bundles suffices, because no path is hidden in one bundle and shown from one below it:

- A path belongs to one entry, whatever the bundle (`Profile.entry_of` is a function of the path), and an entry is
  shown from the topmost bundle that has it, or from none.
- So if an entry is shown from a bundle, no bundle above has a file of it. Other files of the entry in bundles below
  are hidden by whiteouts, and those of the same name lie under it anyway.
- A path of an entry that is not shown (blocked, or of a bundle that was not fetched) is hidden in all bundles.

Where bundles break the first rule (published by a release whose profile divides its cache differently), an entry that
cannot be shown whole and alone is not shown.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import NamedTuple

from warmstart.errors import ResourceError
from warmstart.host import linux
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import PATH, ensure_dir, mount_id, opened_dir, remove_tree
from warmstart.host.identity import Identity
from warmstart.host.untrusted import TurnedAway, open_directory
from warmstart.paths import SEED
from warmstart.seed import node_cache
from warmstart.seed.node_cache import Copy
from warmstart.store.bundles import Offer

MOST_LAYERS = 16
MOST_BUNDLES = MOST_LAYERS - 1  # one layer is for the whiteouts
MOST_WHITEOUTS = 20_000  # a namespace that needs more wants compaction, and is extracted until then
WHITEOUTS = "whiteouts"  # the directory, and the name of that layer
# Explicit, whatever the kernel's defaults are: a view must never depend on xattrs of directories (redirect_dir), nor
# leave content in the layer below (metacopy). `volatile`: nobody needs a job's cache after a crash, and without it each
# unmount syncs the whole file system of the workspace.
_OPTIONS = "upperdir=upper,workdir=work,redirect_dir=nofollow,metacopy=off,index=off,volatile"
_BUSY_PAUSE = 0.005  # short: whoever writes file after file has none open in between
_LAST_TRY = 1.0  # seconds for a writer to pause, when a view is taken down
_REMOVAL = 10.0  # seconds

Picked = list[tuple[Offer, Copy]]  # bundles from the topmost down, each with its copy
Files = Mapping[str, Collection[str]]  # entry → paths of its files


class OverlayUnavailable(ResourceError):
    """This node can't mount a job's view: the bundles are extracted instead."""

    code = "overlay-unavailable"
    template = "{profile}: {problem}"
    hint = "does the kernel have overlay, squashfs and loop devices (/dev/loop-control)? jobs start slower meanwhile"


class TooManyLayers(ResourceError):
    """A namespace has more bundles than an overlay takes, mostly because nobody compacts the store."""

    code = "too-many-layers"
    template = "bundle {bundle}: a job's view has at most {most} bundles"
    hint = "does `warmstart maintain --store` run each night? it makes one bundle of a user's many"


class CacheBusy(ResourceError):
    """A process still writes to the job's cache, so it can't be read as a whole."""

    code = "cache-busy"
    template = "profile {profile}: a process still writes to the job's cache; nothing of it is harvested"
    hint = "which process of the job outlived it? Slurm's ProctrackType should end them all"


class CacheInUse(ResourceError):
    """A process outlived its job and used the job's cache when that was removed."""

    code = "cache-in-use"
    template = "{path}: a process still used {subdirs}; it was detached, and ends with that process"
    hint = "which process of the job outlived it? Slurm's ProctrackType should end them all"


class Layer(NamedTuple):
    """One bundle: what it holds, and which of its entries are for the job."""

    files: Files
    entries: Collection[str]


class View(NamedTuple):
    """What the job sees of the bundles."""

    entries: list[list[str]]  # for each layer those that are shown
    hidden: list[str]  # paths to put whiteouts at; none lies below another


class Shown(NamedTuple):
    """A mounted view."""

    entries: list[str]
    mapped: bool  # whether seeded files look like the job's own; else they are root's, and anybody's to write


class FrozenView(NamedTuple):
    """A view that nobody can write to any more."""

    upper: int  # what the job made or changed: names only, whiteouts are among them
    merged: int  # the view: content is read here


def split_by_layers(copied: Picked) -> tuple[Picked, list[TooManyLayers]]:
    """Return the bundles that fit into one view, the more trusted and older ones, and an error for each other one."""
    errors = [TooManyLayers(bundle=offer.bundle, most=MOST_BUNDLES) for offer, _ in copied[MOST_BUNDLES:]]
    return copied[:MOST_BUNDLES], errors


def show(  # noqa: PLR0917 - where, what, for whom
    run_fd: int, subdir: str, directory: str, picked: Picked, job: Identity, deadline: Deadline
) -> Shown:
    """Mount a view of the bundles at `cache/<subdir>` of a run; `directory` is the node's of layers.

    `cache` is still root's. `OverlayUnavailable`: nothing of it is left. `BundleDamaged`: the index is wrong.
    """
    view = _view(picked)
    roots: list[int] = []
    try:
        for _, copy in picked:
            roots.append(node_cache.mounted(directory, copy, deadline))
        mapped = build(run_fd, subdir, roots, view.hidden, job)
    except OSError as error:
        raise OverlayUnavailable(profile=subdir, problem=error.strerror or str(error)) from error
    finally:
        for root in roots:
            os.close(root)
    return Shown([entry for entries in view.entries for entry in entries], mapped)


def _view(picked: Picked) -> View:
    """Return what is to be seen; bundles that are shown whole need no look at their files."""
    if all(offer.whole for offer, _ in picked):
        return View([offer.entries for offer, _ in picked], [])
    return view([Layer(copy.files(offer), offer.entries) for offer, copy in picked])


def view(layers: Sequence[Layer]) -> View:
    """Return what to show and what to hide; `layers` from the topmost one down."""
    top: dict[str, int] = {}  # path → the topmost layer that holds it
    for number, layer in enumerate(layers):
        for files in layer.files.values():
            for path in files:
                top.setdefault(path, number)
    folders = {folder for path in top for folder in _above(path)}

    def is_clear(path: str, number: int) -> bool:
        return top[path] == number and path not in folders and not any(folder in top for folder in _above(path))

    entries = [
        [entry for entry in layer.entries if all(is_clear(path, number) for path in layer.files[entry])]
        for number, layer in enumerate(layers)
    ]
    shown = {path for layer, names in zip(layers, entries, strict=True) for name in names for path in layer.files[name]}
    hidden = top.keys() - shown
    return View(entries, sorted(path for path in hidden if not any(folder in hidden for folder in _above(path))))


def _above(path: str) -> Iterator[str]:
    """Give the directories that a path lies in."""
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def build(run_fd: int, subdir: str, layers: Sequence[int], hidden: Sequence[str], job: Identity) -> bool:
    """Mount a view of `layers` (O_PATH descriptors of mounted bundles, the topmost first) at `cache/<subdir>`.

    `cache/<subdir>` has to be there and root's, and its parents, too. `hidden` are paths that the job is not to see
    (`view`). Returns whether seeded files look like the job's own (id-mapped); where the kernel can't do that,
    they are root's, 0666 and 0777. `OverlayUnavailable`: then nothing is mounted and nothing of it is left.
    """
    try:
        with suppress(OSError):  # the attempt is the probe: a kernel that can't map says so at once
            return _build(run_fd, subdir, layers, hidden, job, mapped=True)
        return _build(run_fd, subdir, layers, hidden, job, mapped=False)
    except OSError as error:
        raise OverlayUnavailable(profile=subdir, problem=error.strerror or str(error)) from error


def _build(  # noqa: PLR0917 - `build`'s arguments and one way of two
    run_fd: int, subdir: str, layers: Sequence[int], hidden: Sequence[str], job: Identity, mapped: bool
) -> bool:
    ensure_dir(SEED, 0o700, run_fd)
    with opened_dir(SEED, run_fd) as seed:
        os.mkdir(subdir, 0o700, dir_fd=seed)
        try:
            with opened_dir(subdir, seed) as profile_dir, linux.working_in(profile_dir):
                _make_upper(job)
                names = _attached(layers, job if mapped else None)
                if hidden:
                    _make_whiteouts(hidden, job)
                    names.insert(0, WHITEOUTS)
                options = f"lowerdir={':'.join(names)},{_OPTIONS}"
                linux.mount("warmstart", "merged", "overlay", linux.RESTRICTED, options)
                linux.make_private("merged")
                _detach_layers(profile_dir, len(layers))
                linux.bind("merged", f"../../cache/{subdir}")
        except BaseException:
            remove_tree(seed, subdir, after(_REMOVAL))
            raise
    return mapped


def _make_upper(job: Identity) -> None:
    for name in ("work", "merged", "upper"):
        os.mkdir(name, 0o700)
    os.chown("upper", job.uid, job.gid)


def _attached(layers: Sequence[int], job: Identity | None) -> list[str]:
    """Attach a clone of each layer at `l<n>`, id-mapped for `job`; return their names."""
    names = [f"l{number}" for number in range(len(layers))]
    userns = linux.user_namespace(job.uid, job.gid) if job else -1
    try:
        for name, layer in zip(names, layers, strict=True):
            os.mkdir(name, 0o700)
            clone = linux.clone(layer)
            try:
                if job:
                    linux.map_ids(clone, userns)
                linux.attach(clone, name)
            finally:
                os.close(clone)
    finally:
        if userns >= 0:
            os.close(userns)
    return names


def _make_whiteouts(hidden: Sequence[str], job: Identity) -> None:
    """Make a whiteout at each path; directories on the way are the job's: the view shows the topmost."""
    if len(hidden) > MOST_WHITEOUTS:
        raise OSError(errno.E2BIG, f"{len(hidden)} files of its bundles would have to be hidden")
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


def _make_folder(path: str, job: Identity) -> None:
    os.mkdir(path, 0o755)
    os.chmod(path, 0o755)  # whatever the umask is
    os.chown(path, job.uid, job.gid)


def _detach_layers(profile_dir: int, count: int) -> None:
    for number in range(count):
        linux.unmount(f"l{number}", profile_dir)
        os.rmdir(f"l{number}", dir_fd=profile_dir)


@contextmanager
def frozen_view(run_fd: int, profile: str, subdir: str, deadline: Deadline) -> Iterator[FrozenView | None]:
    """Make a profile's view read-only and open it; None where it has none (seeded by extraction, or not at all).

    `CacheBusy` where a process still writes at the deadline.
    """
    with ExitStack() as opened:
        view = _opened(run_fd, subdir, opened)
        if view is None:
            yield None
            return
        profile_dir, merged = view
        if not _make_read_only(merged, deadline):
            raise CacheBusy(profile=profile)
        upper = opened.enter_context(opened_dir("upper", profile_dir))
        yield FrozenView(upper, opened.enter_context(opened_dir(".", merged)))


def _make_read_only(merged: int, deadline: Deadline) -> bool:
    """Make a view read-only; False where somebody still has a file open for writing at the deadline."""
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
    """Unmount all views of a run; return the subdirs of which a process still used one.

    Read-only first, so that such a process changes nothing any more if it can be helped. Removing the run's tree then
    removes the mount points, which takes the mounts out of other jobs' namespaces, too. Repeatable, whatever a
    dead prolog left; nothing mounted is fine.
    """
    return [subdir for subdir in _subdirs(run_fd) if not _take_one_down(run_fd, subdir)]


def _take_one_down(run_fd: int, subdir: str) -> bool:
    """Unmount one view; return whether nobody used it."""
    with ExitStack() as opened:
        view = _opened(run_fd, subdir, opened)
        if view is None:
            return True
        with suppress(OSError):  # the disk below it fails: it goes all the same
            _make_read_only(view[1], after(_LAST_TRY))
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
    """Unmount one profile's view and remove what belongs to it, in the prolog: nobody has used it yet."""
    with suppress(FileNotFoundError), opened_dir(SEED, run_fd) as seed:
        _unmount_from_cache(run_fd, subdir)
        remove_tree(seed, subdir, after(_REMOVAL))


def _unmount_from_cache(run_fd: int, subdir: str) -> bool:
    """Unmount what lies at `cache/<subdir>`; return whether nobody used it.

    All below `cache` is the job's: its mount point may be covered or gone. What is left there goes with the tree.
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


def _opened(run_fd: int, subdir: str, opened: ExitStack) -> tuple[int, int] | None:
    """Return descriptors of `.seed/<subdir>` and (O_PATH) of its view's root; None where it is not mounted."""
    try:
        seed = opened.enter_context(opened_dir(SEED, run_fd))
        profile_dir = opened.enter_context(opened_dir(subdir, seed))
        merged = os.open("merged", PATH, dir_fd=profile_dir)
    except FileNotFoundError:
        return None
    opened.callback(os.close, merged)
    return None if mount_id(merged) == mount_id(profile_dir) else (profile_dir, merged)
