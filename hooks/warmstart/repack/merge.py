"""Rewrite published bundles: compaction, promotion, scrubbing. Runs as root in maintenance and on the command line.

Root parses no bundle. Its bytes are fetched and hashed as the store's owner, unpacked under the validator's uid
without network, and copied into root's stage like a job's cache: bounded, following no link. Every file must be what
the manifest says.

Compaction makes one bundle of many of one user, and no reader notices. It holds the entries of which the user was the
first publisher, with an id one microsecond before its oldest source, so the next reader of the index takes all from
it. Sources stay for readers of the older index (`maintenance.superseded`). A crash leaves the sources, or the new
bundle beside them; both are whole. Bundles of different users are never merged, because an administrator may block a
user.

Promotion copies entries into a more trusted scope, by an administrator's command. They keep the name of their
producer, so that blocking that user blocks them there, too.

Scrubbing reads a thirtieth of the store each day, chosen by hash and date, so it keeps no state, and moves damaged
bundles aside.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

from warmstart.errors import ResourceError, UserError
from warmstart.harvest.collect import HarvestLimits, Stage, collect, room
from warmstart.harvest.pack import pack
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import ensure_dir, opened_dir, remove_tree
from warmstart.host.identity import Identity
from warmstart.seed.extract import Bounds, Source, extract
from warmstart.store.bundles import BundleDamaged, Published
from warmstart.store.client import StoreClient
from warmstart.store.layout import Namespace
from warmstart.store.maintenance import Bundle, Merger
from warmstart.store.manifest import OTHER_FORMAT, Draft, Entries, File, Manifest, ManifestUnreadable, Origin

FEWEST = 4  # bundles of one user: fewer are left alone
MOST_BYTES = 2 << 30
_TRUST = {"user": 0, "account": 1, "site": 2}
DAYS = 30
NAME = "bundles"  # one at a time, by the lock of the store's maintenance; what a dead one left is removed first
_REMOVAL = 60.0  # seconds
_UNNAMED = 1 << 20  # bytes of a file that no manifest names: such a one is left behind


def compact(bench: RepackSettings, where: Namespace, merger: Merger, deadline: Deadline) -> Published:
    """Make one bundle of several and publish it.

    `bundle` is None where one of the sources has gone meanwhile. `BundleDamaged` names a source to be quarantined.
    """
    found = {bundle: bench.store.manifest(where, bundle, deadline) for bundle in merger.sources}
    wanted = [BundleSelection(where, found[bundle], entries) for bundle, entries in merger.entries.items()]
    draft = _draft(merger, found)
    with unpacked(bench, wanted, deadline) as stage:
        return publish_stage(bench, stage, where, draft, deadline)


def publish_stage(bench: RepackSettings, stage: str, where: Namespace, draft: Draft, deadline: Deadline) -> Published:
    """Pack `entries/` of a maintenance run's stage and publish it as the store's owner."""
    fd = pack(f"{stage}/entries", f"{stage}/bundle.sqsh", deadline)
    try:
        publish = bench.store.publish_compacted if draft.replaces else bench.store.publish
        return publish(where, fd, draft, deadline)
    finally:
        os.close(fd)


def _draft(merger: Merger, found: dict[str, Manifest]) -> Draft:
    oldest = found[merger.sources[0]]
    taken = [(found[bundle], entry) for bundle, entries in merger.entries.items() for entry in entries]
    return Draft(
        oldest.producer,
        oldest.facts,
        {entry: source.entries[entry] for source, entry in taken},
        {entry: origin(source, entry) for source, entry in taken},
        merger.sources,
    )


def origin(source: Manifest, entry: str) -> Origin:
    """Return who made an entry, and the bundle that it was first published in."""
    return source.origins.get(entry) or Origin(*source.producer, source.scope, source.bundle)


class PromotionRefused(UserError):
    """Entries go only from a less into a more trusted scope, and only those that a bundle has."""

    code = "promotion-refused"
    template = "{problem}"
    hint = "`warmstart cache ls` has scopes, `warmstart cache show BUNDLE` the entries"


class Choice(NamedTuple):
    """What to promote, and where to."""

    where: Namespace
    bundle: str
    entries: Collection[str]  # none: all
    scope: str


def promote(bench: RepackSettings, choice: Choice, deadline: Deadline) -> Published:
    """Publish entries of a bundle in a more trusted scope."""
    where, bundle, entries, scope = choice
    if _trust(where.scope) >= _trust(scope):
        raise PromotionRefused(problem=f"{scope} is not more trusted than {where.scope}")
    found = bench.store.manifest(where, bundle, deadline)
    missing = sorted(set(entries) - found.entries.keys())
    if missing:
        raise PromotionRefused(problem=f"bundle {bundle} has no entry {missing[0]!a}")
    chosen = sorted(entries) or sorted(found.entries)
    entries_chosen = {entry: found.entries[entry] for entry in chosen}
    draft = Draft(found.producer, found.facts, entries_chosen, {entry: origin(found, entry) for entry in chosen})
    with unpacked(bench, [BundleSelection(where, found, chosen)], deadline) as stage:
        return publish_stage(bench, stage, where._replace(scope=scope), draft, deadline)


def _trust(scope: str) -> int:
    kind, _, rest = scope.partition("-")
    if kind not in _TRUST or (kind == "site") == bool(rest):
        raise PromotionRefused(problem=f"{scope!a} is no scope: user-UID-NAME, account-NAME or site")
    return _TRUST[kind]


def is_due(bundle: Bundle, day: int) -> bool:
    """Tell whether a bundle's turn is on this day (`maintenance.today`)."""
    return int(bundle.sha256[:8], 16) % DAYS == day % DAYS


def verify(bench: RepackSettings, where: Namespace, bundle: str, deadline: Deadline) -> str:
    """Return what is wrong with a bundle, "" if nothing is.

    Raises what says nothing about the bundle: `ManifestUnreadable` of another format, `BundleGone`, `StoreFailed`,
    `UnpackFailed`, a program's errors.
    """
    try:
        found = bench.store.manifest(where, bundle, deadline)
        with unpacked(bench, [BundleSelection(where, found, sorted(found.entries))], deadline):
            return ""
    except (BundleDamaged, ManifestUnreadable) as error:
        if isinstance(error, ManifestUnreadable) and str(error.fields["problem"]).startswith(OTHER_FORMAT):
            raise
        return str(error.fields["problem"])


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
