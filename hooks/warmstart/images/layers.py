"""Layers that imports keep on a node, so that no later import fetches them again. Runs as root.

    <workspace>/<node>/layers/    root, 0700
        <repository>/             root, 0700; locked (flock) by the import that fetches and unpacks
            layout/               the import account, 0700: an OCI layout, which skopeo writes
                blobs/sha256/     layers, and the manifests and configurations of the images

A directory for each repository, and another one for the same repository in a store of private images. An import's
programs see their own layout, as a bind mount in the scratch (`base.run`); nobody reaches the others.

What lies there was written by programs that had parsed hostile bytes, and may have been left by a killed download. So
root uses nothing of it but layers that have the size and the SHA-256 that the manifest says, and removes everything
else before an import. What packs the layers (flatten.py, or umoci) checks its own hashes again while it reads.

All repositories together keep `limit` bytes, and no more than a quarter of the disk. The least recently used layers go,
but none that a running import wants: its image may be larger than the limit until it is unpacked.
"""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import islice
from typing import NamedTuple

from warmstart.host.deadline import Deadline, after
from warmstart.host.files import (
    CHUNK,
    DIRECTORY,
    ReadFailed,
    copy_hashed,
    ensure_dir,
    ensure_path,
    is_at,
    open_regular,
    opened_dir,
    remove_tree,
    try_flock,
    wait_flock,
)
from warmstart.host.identity import Identity
from warmstart.host.process import ProgramTooSlow
from warmstart.host.space import room
from warmstart.images.scratch import LAYOUT, STAT_BLOCK, Caps, ScratchUnusable, Watch, disk_errors

LAYERS = "layers"
UNFINISHED = "oci-put-blob"  # skopeo's downloads; it renames them when their digest is right
REMOVAL_S = 60.0
PAUSE_S = 0.2  # between two attempts to take a lock
EXTRA = 16 << 20  # bytes for manifests and configurations
MOST_FILES = 10_000  # that one fetch may add
DISK_SHARE = 4  # layers take at most one part in this many
_NAME = re.compile(r"[0-9a-f]{64}\Z")


class LayerPlace(NamedTuple):
    """Where the layers of one repository are kept, and how much a node keeps of all repositories."""

    directory: str  # absolute; root's; of all repositories
    repository: str  # a file name; the same repository fetched with other credentials has another one
    limit: int  # bytes of all repositories together


class Layer(NamedTuple):
    """A layer as the image's manifest describes it."""

    digest: str  # sha256:HEX
    size: int  # bytes

    @property
    def name(self) -> str:
        """Its file name in a layout."""
        return self.digest.partition(":")[2]


class _Kept(NamedTuple):
    """A layer that could be removed."""

    used: float  # seconds since the epoch
    size: int  # bytes on the disk
    name: str
    blobs: int  # descriptor of its directory


class KeptLayers(NamedTuple):
    """The layout of one repository, locked."""

    place: LayerPlace
    path: str  # absolute
    layout: int  # descriptor
    blobs: int  # descriptor of blobs/sha256

    def check(self, wanted: Sequence[Layer], deadline: Deadline, report: Callable[[int], None]) -> list[Layer]:
        """Return the layers that are here, whole; remove those that are not.

        `report` is called now and then with the bytes that were read. Raises `ProgramTooSlow` at the deadline.
        """
        done = 0

        def watch() -> None:
            nonlocal done
            if deadline.expired():
                raise ProgramTooSlow(program="the check of kept layers")
            report(done)
            done += CHUNK

        whole: list[Layer] = []
        for layer in wanted:
            if self._is_whole(layer, watch):
                whole.append(layer)
            done = sum(each.size for each in whole)
        return whole

    def _is_whole(self, layer: Layer, watch: Callable[[], None]) -> bool:
        try:
            fd = open_regular(layer.name, self.blobs)
        except FileNotFoundError:
            return False
        except OSError:  # a link, a FIFO
            remove_tree(self.blobs, layer.name, after(REMOVAL_S))
            return False
        try:
            status = os.fstat(fd)
            if status.st_nlink == 1 and status.st_size == layer.size:
                copied = copy_hashed(fd, most=layer.size + 1, watch=watch)
                if copied == (layer.size, layer.name):
                    os.utime(fd)  # the time of its last use
                    return True
        except ReadFailed:  # a bad place on the disk: fetched again, the layer lies elsewhere
            pass
        finally:
            os.close(fd)
        os.unlink(layer.name, dir_fd=self.blobs)
        return False

    def arrived(self, wanted: Sequence[Layer]) -> int:
        """Return how many bytes of these layers are here, with those of unfinished downloads."""
        with os.scandir(self.layout) as listing:  # the import account makes as many names as it likes
            names = [each.name for each in islice(listing, MOST_FILES) if each.name.startswith(UNFINISHED)]
        here = sum(_length(each.name, self.blobs) for each in wanted) + sum(_length(n, self.layout) for n in names)
        return min(here, sum(each.size for each in wanted))

    def watch(self, missing: int) -> Watch:
        """Return a watch that notices more than `missing` bytes that are added to the layout from now on."""
        size = _size_on_disk(self.layout) + _size_on_disk(self.blobs)
        files = sum(1 for _ in _entries(self.blobs))
        return Watch(self.layout, Caps(size + missing + EXTRA, files + MOST_FILES))

    def make_room(self, wanted: Collection[Layer] = (), missing: int = 0) -> None:
        """Remove layers of all repositories, down to the limit, to make room for `missing` bytes.

        Keeps those that are `wanted`. Raises `ScratchUnusable` if the disk has no room.
        """
        with disk_errors(self.place.directory), opened_dir(self.place.directory) as directory:
            _make_room(directory, self.place.limit, missing, self, {layer.name for layer in wanted})
            if room(directory) < missing:
                raise ScratchUnusable(path=self.place.directory, problem=f"its layers take {missing} bytes")


@contextmanager
def opened(
    place: LayerPlace, identity: Identity, deadline: Deadline, waiting: Callable[[], None]
) -> Iterator[KeptLayers | None]:
    """Lock the layout of a repository for the duration of a `with`, and remove what earlier imports left unfinished.

    If another import has it, calls `waiting` and waits; yields None at the deadline. Raises `ScratchUnusable` or
    `WorkspaceUnusable`.
    """
    with ExitStack() as stack:
        with disk_errors(place.directory):
            ensure_path(os.path.dirname(place.directory), 0o755)
            ensure_dir(place.directory, 0o700)
            parent = stack.enter_context(opened_dir(place.directory))
            kept = _lock(parent, place.repository, deadline, waiting)
            if kept >= 0:
                stack.callback(os.close, kept)
                layout = _account_directory(kept, LAYOUT, identity, stack)
                blobs = _account_directory(layout, "blobs", identity, stack)
                blobs = _account_directory(blobs, "sha256", identity, stack)
                _sweep(layout)
        if kept < 0:
            yield None
        else:
            yield KeptLayers(place, os.path.join(place.directory, place.repository, LAYOUT), layout, blobs)


def tidy(directory: str, limit: int) -> None:
    """Remove what dead downloads left, and layers down to `limit` bytes. Leaves repositories alone that are in use."""
    try:
        with opened_dir(directory) as parent:
            _make_room(parent, limit, 0, None, frozenset())
    except FileNotFoundError:
        return


def _lock(parent: int, name: str, deadline: Deadline, waiting: Callable[[], None]) -> int:
    """Return a descriptor of a repository's directory, locked; -1 if another import has it at the deadline."""
    while True:
        ensure_dir(name, 0o700, parent)
        fd = os.open(name, DIRECTORY, dir_fd=parent)
        if not try_flock(fd):
            waiting()
            if not wait_flock(fd, deadline, PAUSE_S):
                os.close(fd)
                return -1
        if is_at(fd, name, parent):  # else it was removed as empty
            return fd
        os.close(fd)


def _account_directory(parent: int, name: str, identity: Identity, stack: ExitStack) -> int:
    """Return a descriptor of a directory of the import account; create it in place of anything else."""
    try:
        fd = os.open(name, DIRECTORY, dir_fd=parent)
        if os.fstat(fd).st_uid == identity.uid:
            stack.callback(os.close, fd)
            return fd
        os.close(fd)
    except OSError:  # nothing, a link, or no directory
        pass
    remove_tree(parent, name, after(REMOVAL_S))
    os.mkdir(name, 0o700, dir_fd=parent)
    fd = os.open(name, DIRECTORY, dir_fd=parent)
    stack.callback(os.close, fd)
    os.fchown(fd, identity.uid, identity.gid)
    return fd


def _sweep(layout: int) -> None:
    """Remove everything from a layout but blobs: unfinished downloads, the index, and what should not be there."""
    _remove_others(layout, lambda name, status: name == "blobs" and stat.S_ISDIR(status.st_mode))
    with opened_dir("blobs", layout) as blobs:
        _remove_others(blobs, lambda name, status: name == "sha256" and stat.S_ISDIR(status.st_mode))
        with opened_dir("sha256", blobs) as sha256:
            _remove_others(sha256, _is_blob)


def _is_blob(name: str, status: os.stat_result) -> bool:
    return bool(_NAME.match(name)) and stat.S_ISREG(status.st_mode) and status.st_nlink == 1


def _remove_others(directory: int, stays: Callable[[str, os.stat_result], bool]) -> None:
    deadline = after(REMOVAL_S)
    for name, status in _entries(directory):
        if not stays(name, status):
            remove_tree(directory, name, deadline)


def _make_room(parent: int, limit: int, missing: int, own: KeptLayers | None, wanted: Collection[str]) -> None:
    """Remove the least recently used layers, as `KeptLayers.make_room` does; `own` is locked by us."""
    disk = os.fstatvfs(parent)
    limit = min(limit, disk.f_blocks * disk.f_frsize // DISK_SHARE)
    total, layers = 0, []
    with ExitStack() as stack:
        idle: dict[str, int] = {}
        for name in os.listdir(parent):
            if own is not None and name == own.place.repository:
                total += _size_on_disk(own.blobs)
                layers += [each for each in _layers_in(own.blobs) if each.name not in wanted]
                continue
            blobs, is_idle = _other(parent, name, stack)
            if blobs >= 0:
                total += _size_on_disk(blobs)
            if is_idle:
                idle[name] = blobs
                layers += _layers_in(blobs) if blobs >= 0 else []
        for layer in sorted(layers):
            if total + missing <= limit and room(parent) > missing:
                break
            os.unlink(layer.name, dir_fd=layer.blobs)
            total -= layer.size
        for name, blobs in idle.items():
            if blobs < 0 or next(_entries(blobs), None) is None:
                remove_tree(parent, name, after(REMOVAL_S))


def _other(parent: int, name: str, stack: ExitStack) -> tuple[int, bool]:
    """Return a descriptor of another repository's blobs, -1 if it has none, and whether no import uses it.

    If so, it is locked while `stack` is open, and what is unfinished there is removed.
    """
    try:
        fd = stack.enter_context(opened_dir(name, parent))
    except FileNotFoundError:  # another import has just removed it
        return -1, False
    is_idle = try_flock(fd)
    try:
        layout = stack.enter_context(opened_dir(LAYOUT, fd))
        if is_idle:
            _sweep(layout)
        blobs = stack.enter_context(opened_dir("blobs", layout))
        return stack.enter_context(opened_dir("sha256", blobs)), is_idle
    except OSError:  # it was never used, or an import is making it
        return -1, is_idle


def _layers_in(blobs: int) -> list[_Kept]:
    """Return the files in a directory of blobs. Times in the future, which its account could set, count as the past."""
    soon = time.time() + 1
    return [
        _Kept(status.st_mtime if status.st_mtime < soon else 0.0, status.st_blocks * STAT_BLOCK, name, blobs)
        for name, status in _entries(blobs)
    ]


def _size_on_disk(directory: int) -> int:
    return sum(status.st_blocks for _, status in _entries(directory)) * STAT_BLOCK


def _entries(directory: int) -> Iterator[tuple[str, os.stat_result]]:
    """Yield names and states of what is in a directory, without what goes meanwhile: a program may be at work."""
    with os.scandir(directory) as listing:
        for entry in listing:
            with suppress(FileNotFoundError):
                yield entry.name, entry.stat(follow_symlinks=False)


def _length(name: str, directory: int) -> int:
    try:
        status = os.stat(name, dir_fd=directory, follow_symlinks=False)
    except FileNotFoundError:
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0
