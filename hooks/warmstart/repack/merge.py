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

Scrubbing reads a thirtieth of the store each day, chosen by hash and date, so it needs no state. Damaged bundles are
quarantined.
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
DAYS = 30  # in which all of the store is scrubbed

_TRUST = {"user": 0, "account": 1, "site": 2}
_STAGE = "bundles"  # one at a time, by the lock of the store's maintenance; what a dead one left is removed first
_REMOVAL = 60.0  # seconds
_UNNAMED = 1 << 20  # bytes of a file that no manifest names: such a one is left behind


class PromotionRefused(UserError):
    """Entries go only from a less into a more trusted scope, and only those that a bundle has."""

    code = "promotion-refused"
    template = "{problem}"
    hint = "`warmstart cache ls` has scopes, `warmstart cache show BUNDLE` the entries"


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

    namespace: Namespace
    manifest: Manifest
    entries: list[str]


class Choice(NamedTuple):
    """What to promote, and into which scope."""

    where: Namespace
    bundle: str
    entries: Collection[str]  # none: all
    scope: str


def compact(settings: RepackSettings, where: Namespace, merger: Merger, deadline: Deadline) -> Published:
    """Make one bundle of several and publish it.

    `bundle` is None where one of the sources has gone meanwhile. `BundleDamaged` names a source to be quarantined.
    """
    found = {bundle: settings.store.manifest(where, bundle, deadline) for bundle in merger.sources}
    selections = [BundleSelection(where, found[bundle], entries) for bundle, entries in merger.entries.items()]
    draft = draft_of(found[merger.sources[0]], selections)._replace(replaces=merger.sources)
    with unpacked(settings, selections, deadline) as stage:
        return publish_stage(settings, stage, where, draft, deadline)


def promote(settings: RepackSettings, choice: Choice, deadline: Deadline) -> Published:
    """Publish entries of a bundle in a more trusted scope."""
    where, bundle, entries, scope = choice
    if _trust(where.scope) >= _trust(scope):
        raise PromotionRefused(problem=f"{scope} is not more trusted than {where.scope}")
    found = settings.store.manifest(where, bundle, deadline)
    missing = sorted(set(entries) - found.entries.keys())
    if missing:
        raise PromotionRefused(problem=f"bundle {bundle} has no entry {missing[0]!a}")
    selections = [BundleSelection(where, found, sorted(entries) or sorted(found.entries))]
    with unpacked(settings, selections, deadline) as stage:
        return publish_stage(settings, stage, where._replace(scope=scope), draft_of(found, selections), deadline)


def _trust(scope: str) -> int:
    kind, _, rest = scope.partition("-")
    if kind not in _TRUST or (kind == "site") == bool(rest):
        raise PromotionRefused(problem=f"{scope!a} is no scope: user-UID-_STAGE, account-_STAGE or site")
    return _TRUST[kind]


def is_due(bundle: Bundle, day: int) -> bool:
    """Tell whether a bundle is scrubbed on this day (`maintenance.today`)."""
    return int(bundle.sha256[:8], 16) % DAYS == day % DAYS


def verify(settings: RepackSettings, where: Namespace, bundle: str, deadline: Deadline) -> str:
    """Return what is wrong with a bundle, "" if nothing is.

    Raises what says nothing about the bundle: `ManifestUnreadable` of another format, `BundleGone`, `StoreFailed`,
    `UnpackFailed`, a program's errors.
    """
    try:
        found = settings.store.manifest(where, bundle, deadline)
        with unpacked(settings, [BundleSelection(where, found, sorted(found.entries))], deadline):
            return ""
    except (BundleDamaged, ManifestUnreadable) as error:
        if isinstance(error, ManifestUnreadable) and str(error.fields["problem"]).startswith(OTHER_FORMAT):
            raise
        return str(error.fields["problem"])


def draft_of(first: Manifest, selections: Sequence[BundleSelection]) -> Draft:
    """Return what the manifest of a bundle with the selected entries is made of; producer and facts are `first`'s."""
    entries: Entries = {}
    origins = {}
    for selection in selections:
        source = selection.manifest
        for entry in selection.entries:
            entries[entry] = source.entries[entry]
            origins[entry] = source.origins.get(entry) or Origin(*source.producer, source.scope, source.bundle)
    return Draft(first.producer, first.facts, entries, origins)


def publish_stage(
    settings: RepackSettings, stage: str, where: Namespace, draft: Draft, deadline: Deadline
) -> Published:
    """Pack `entries/` of a maintenance run's stage and publish it as the store's owner."""
    fd = pack(f"{stage}/entries", f"{stage}/bundle.sqsh", deadline)
    try:
        publish = settings.store.publish_compacted if draft.replaces else settings.store.publish
        return publish(where, fd, draft, deadline)
    finally:
        os.close(fd)


@contextmanager
def unpacked(
    settings: RepackSettings,
    selections: Sequence[BundleSelection],
    deadline: Deadline,
    copy: Callable[[BundleSelection, int], None] | None = None,
) -> Iterator[str]:
    """Give a directory of root's with the entries in `entries/`; it is gone after the `with`.

    `copy` fills an empty file with a bundle and raises where its bytes are not its manifest's; without it they come
    from the store. No two of `selections` may have a file in common. `BundleDamaged` for the first bundle that is not
    what its manifest says, `UnpackFailed`, `ExtractionFailed`, and the errors of `bundles.fetch`.
    """
    try:
        ensure_dir(settings.stage, 0o700)
        with opened_dir(settings.stage) as parent:
            remove_tree(parent, _STAGE, after(_REMOVAL))
            os.mkdir(_STAGE, 0o700, dir_fd=parent)
            try:
                with opened_dir(_STAGE, parent) as top:
                    _fill(settings, top, selections, deadline, copy or partial(_from_store, settings, deadline))
                    yield os.path.join(settings.stage, _STAGE)
            finally:
                remove_tree(parent, _STAGE, after(_REMOVAL))
    except OSError as error:
        raise UnpackFailed(path=settings.stage, problem=error.strerror or str(error)) from error


def _fill(
    settings: RepackSettings,
    top: int,
    selections: Sequence[BundleSelection],
    deadline: Deadline,
    copy: Callable[[BundleSelection, int], None],
) -> None:
    sizes = [file.size for selection in selections for file in _files(selection)]
    _require_room(settings, 2 * sum(sizes))  # what is unpacked, and root's copy of it
    sources = [_fetched(settings, top, selection, copy) for selection in selections]
    os.mkdir("unpacked", 0o700, dir_fd=top)
    with opened_dir("unpacked", top) as unpacked_fd:
        os.fchown(unpacked_fd, settings.validator.uid, settings.validator.gid)
        bounds = Bounds(max([_UNNAMED, *sizes]), partial(_require_room, settings, 0))
        extract(sources, unpacked_fd, "all", settings.validator, deadline, bounds)
    for source in sources:
        os.unlink(os.path.basename(source.path), dir_fd=top)
    os.mkdir("entries", 0o755, dir_fd=top)
    with opened_dir("entries", top) as stage:
        for selection in selections:
            _collect_verified(settings, top, stage, selection, deadline)
    remove_tree(top, "unpacked", after(_REMOVAL))


def _files(selection: BundleSelection) -> list[File]:
    return [file for entry in selection.entries for file in selection.manifest.entries[entry].values()]


def _require_room(settings: RepackSettings, more: int) -> None:
    """Raise `UnpackFailed` where `more` bytes would fill the stage's disk: a manifest may say anything."""
    left = room(settings.stage)
    if left <= more:
        raise UnpackFailed(
            path=settings.stage, problem=f"there is room for {left} bytes, and it takes {more or 'more'}"
        )
    found = os.statvfs(settings.stage)
    if found.f_favail * 20 < found.f_files:
        raise UnpackFailed(path=settings.stage, problem="less than a twentieth of its inodes is left")


def _from_store(settings: RepackSettings, deadline: Deadline, selection: BundleSelection, fd: int) -> None:
    """Fetch a bundle, checked on the way by its SHA-256."""
    manifest = selection.manifest
    settings.store.fetch(selection.namespace, manifest.bundle, manifest.sha256, manifest.size, deadline, into=fd)


def _fetched(
    settings: RepackSettings, top: int, selection: BundleSelection, copy: Callable[[BundleSelection, int], None]
) -> Source:
    """Bring a bundle into the stage; return what of it to unpack."""
    manifest = selection.manifest
    name = f"{manifest.bundle}.sqsh"
    fd = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444, dir_fd=top)
    try:
        copy(selection, fd)
    finally:
        os.close(fd)
    whole = len(selection.entries) == len(manifest.entries)
    files = None if whole else [path for entry in selection.entries for path in manifest.entries[entry]]
    return Source(os.path.join(settings.stage, _STAGE, name), files)


def _collect_verified(
    settings: RepackSettings, top: int, stage: int, selection: BundleSelection, deadline: Deadline
) -> None:
    """Copy one bundle's entries into root's stage, and compare them with its manifest."""
    entries = {entry: selection.manifest.entries[entry] for entry in selection.entries}
    entry_of = {path: entry for entry, files in entries.items() for path in files}
    collected = collect(
        *(top, "unpacked/all"),
        owner=settings.validator.uid,
        entry_of=entry_of.get,
        skip=(),
        stage=Stage(stage),
        limits=HarvestLimits(sum(file.size for file in _files(selection)), 1 << 31, deadline),
    )
    if collected.truncated:
        raise UnpackFailed(path=settings.stage, problem=collected.truncated)
    if _content(collected.entries) != _content(entries):
        raise BundleDamaged(bundle=selection.manifest.bundle, problem="its entries are not those of its manifest")


def _content(entries: Entries) -> dict[str, dict[str, tuple[int, str]]]:
    # Not mtimes: a squashfs keeps seconds.
    return {entry: {path: (file.size, file.sha256) for path, file in files.items()} for entry, files in entries.items()}
