"""Take entries out of bundles again, into a stage of root's: for compaction, promotion and scrubbing.

Root parses no bundle (design, rule 3): its bytes are fetched and hashed by the store's owner, unpacked under the
validator's uid without network, and copied into root's stage like a job's cache: bounded, following no link. What
arrives there must be, file by file, what the manifests say.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from warmstart.errors import ResourceError
from warmstart.harvest.collect import HarvestLimits, collect
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import ensure_dir, opened_dir, remove_tree
from warmstart.host.identity import Identity
from warmstart.seed.extract import Bounds, Source, extract
from warmstart.store.bundles import BundleDamaged
from warmstart.store.client import StoreClient
from warmstart.store.layout import Namespace
from warmstart.store.manifest import Entries, File, Manifest
from warmstart.store.stage import Stage, room

NAME = "bundles"  # one at a time, by the lock of the store's maintenance; what a dead one left is removed first
_REMOVAL = 60.0  # seconds
_UNNAMED = 1 << 20  # bytes of a file that no manifest names: such a one is left behind


class UnpackFailed(ResourceError):
    """This node's disk did not take what maintenance unpacks."""

    code = "unpack-failed"
    template = "{path}: {problem}"
    hint = "is there space left on the disk of the node's state? maintenance needs a bundle twice and its content twice"


class RepackSettings(NamedTuple):
    """Where maintenance works on this node, and as whom."""

    stage: str  # a directory of root's
    store: StoreClient
    validator: Identity


class BundleSelection(NamedTuple):
    """Entries of one bundle."""

    where: Namespace
    found: Manifest
    entries: list[str]


@contextmanager
def unpacked(
    bench: RepackSettings,
    wanted: Sequence[BundleSelection],
    deadline: Deadline,
    copy: Callable[[BundleSelection, int], None] | None = None,
) -> Iterator[str]:
    """Give a directory of root's with the entries in `entries/`; it is gone after the `with`.

    `copy` fills an empty file with a bundle and raises where its bytes are not its manifest's; without it they come
    from the store. No two of `wanted` may have a file in common. `BundleDamaged` for the first bundle that is not what
    its manifest says, `UnpackFailed`, `ExtractionFailed`, and the errors of `bundles.fetch`.
    """
    try:
        ensure_dir(bench.stage, 0o700)
        with opened_dir(bench.stage) as parent:
            remove_tree(parent, NAME, after(_REMOVAL))
            os.mkdir(NAME, 0o700, dir_fd=parent)
            try:
                with opened_dir(NAME, parent) as top:
                    _fill(bench, top, wanted, deadline, copy or partial(_from_store, bench, deadline))
                    yield os.path.join(bench.stage, NAME)
            finally:
                remove_tree(parent, NAME, after(_REMOVAL))
    except OSError as error:
        raise UnpackFailed(path=bench.stage, problem=error.strerror or str(error)) from error


def _fill(
    bench: RepackSettings,
    top: int,
    wanted: Sequence[BundleSelection],
    deadline: Deadline,
    copy: Callable[[BundleSelection, int], None],
) -> None:
    sizes = [file.size for item in wanted for file in _files(item)]
    _require_room(bench, 2 * sum(sizes))  # what is unpacked, and root's copy of it
    sources = [_fetched(bench, top, item, copy) for item in wanted]
    os.mkdir("unpacked", 0o700, dir_fd=top)
    with opened_dir("unpacked", top) as place:
        os.fchown(place, bench.validator.uid, bench.validator.gid)
        bounds = Bounds(max([_UNNAMED, *sizes]), partial(_require_room, bench, 0))
        extract(sources, place, "all", bench.validator, deadline, bounds)
    for source in sources:
        os.unlink(os.path.basename(source.path), dir_fd=top)
    os.mkdir("entries", 0o755, dir_fd=top)
    with opened_dir("entries", top) as stage:
        for item in wanted:
            _take(bench, (top, stage), item, deadline)
    remove_tree(top, "unpacked", after(_REMOVAL))


def _files(item: BundleSelection) -> list[File]:
    return [file for entry in item.entries for file in item.found.entries[entry].values()]


def _require_room(bench: RepackSettings, more: int) -> None:
    """Raise `UnpackFailed` where `more` bytes would fill the stage's disk: a manifest may say anything."""
    left = room(bench.stage)
    if left <= more:
        raise UnpackFailed(path=bench.stage, problem=f"there is room for {left} bytes, and it takes {more or 'more'}")
    found = os.statvfs(bench.stage)
    if found.f_favail * 20 < found.f_files:
        raise UnpackFailed(path=bench.stage, problem="less than a twentieth of its inodes is left")


def _from_store(bench: RepackSettings, deadline: Deadline, item: BundleSelection, fd: int) -> None:
    """Fetch a bundle, checked on the way by its SHA-256."""
    found = item.found
    bench.store.fetch(item.where, found.bundle, found.sha256, found.size, deadline, into=fd)


def _fetched(
    bench: RepackSettings, top: int, item: BundleSelection, copy: Callable[[BundleSelection, int], None]
) -> Source:
    """Bring a bundle here."""
    found = item.found
    name = f"{found.bundle}.sqsh"
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444, dir_fd=top)
    try:
        copy(item, fd)
    finally:
        os.close(fd)
    whole = len(item.entries) == len(found.entries)
    files = None if whole else [path for entry in item.entries for path in found.entries[entry]]
    return Source(os.path.join(bench.stage, NAME, name), files)


def _take(bench: RepackSettings, places: tuple[int, int], item: BundleSelection, deadline: Deadline) -> None:
    """Copy one bundle's entries into root's stage, and compare them with its manifest."""
    top, stage = places
    entries = {entry: item.found.entries[entry] for entry in item.entries}
    entry_of = {path: entry for entry, files in entries.items() for path in files}
    collected = collect(
        *(top, "unpacked/all"),
        owner=bench.validator.uid,
        entry_of=entry_of.get,
        skip=(),
        stage=Stage(stage),
        limits=HarvestLimits(sum(file.size for file in _files(item)), 1 << 31, deadline),
    )
    if collected.truncated:
        raise UnpackFailed(path=bench.stage, problem=collected.truncated)
    if _content(collected.entries) != _content(entries):
        raise BundleDamaged(bundle=item.found.bundle, problem="its entries are not those of its manifest")


def _content(entries: Entries) -> dict[str, dict[str, tuple[int, str]]]:
    # Not mtimes: a squashfs keeps seconds.
    return {entry: {path: (file.size, file.sha256) for path, file in files.items()} for entry, files in entries.items()}
