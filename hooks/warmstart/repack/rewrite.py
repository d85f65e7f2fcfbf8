"""Rewrite published bundles: compaction, promotion, scrubbing. Runs as root in maintenance and on the command line.

Root never parses a bundle. The store's owner fetches and hashes it, the validator's uid unpacks it without network,
and root copies the files into its stage as from a job's cache: bounded, following no link. Each file is compared with
the manifest.

Compaction merges bundles of one user into one; readers get the same entries as before. The new bundle has the entries
that readers take from its sources, their marks (`store.index`), and an id one microsecond before its oldest source, so
readers of the new index take all of its entries from it. The sources stay for readers of the old index
(`maintenance.superseded`). A crash leaves the sources alone or with the new bundle; both states are complete. Bundles
of different users are never merged, because an administrator may remove a user's.

Promotion copies entries into a more trusted scope at an administrator's command. Their producer stays the same.

Scrubbing verifies a thirtieth of the store each day, chosen by hash and date, so it needs no state. Damaged bundles
are quarantined.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import NamedTuple

from warmstart.errors import UserError
from warmstart.harvest.collect import HarvestLimits, Stage, collect
from warmstart.harvest.pack import pack
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import DiskFailed, closing, disk_errors, ensure_dir, opened_dir, remove_tree
from warmstart.host.identity import Identity
from warmstart.host.space import Reservation, room
from warmstart.host.untrusted import UNREADABLE
from warmstart.profiles import registry
from warmstart.profiles.contract import OWNERS, is_whole
from warmstart.seed.extract import Bounds, Source, extract, parents
from warmstart.store.bundles import BundleDamaged, Offer, Published
from warmstart.store.client import StoreClient
from warmstart.store.layout import Namespace
from warmstart.store.maintenance import Bundle, Merger
from warmstart.store.manifest import OTHER_FORMAT, Draft, Entries, File, Manifest, ManifestUnreadable, Origin

FEWEST = 4  # bundles of one user in a namespace; fewer are not merged
MOST_BYTES = 512 << 20  # of a compacted bundle, which comes in one prolog's time
DAYS = 30  # to scrub the whole store once

_TRUST = {"user": 0, "account": 1, "site": 2}
_STAGE = "bundles"  # one process at a time, by the store's maintenance lock; leftovers are removed first
_REMOVAL = 60.0  # seconds


class PromotionRefused(UserError):
    """The target scope is not more trusted, the entries stay with their user, or the bundle does not have them."""

    code = "promotion-refused"
    template = "{problem}"
    hint = "run `warmstart cache list` for the scopes, `warmstart cache show BUNDLE` for its entries"


class RepackSettings(NamedTuple):
    """Directory, store and identity that all operations here use."""

    stage: str  # path of a directory that only root can enter
    store: StoreClient
    validator: Identity  # unpacks


class BundleSelection(NamedTuple):
    """Entries of one bundle to unpack."""

    namespace: Namespace
    manifest: Manifest
    entries: list[str]


def compact(settings: RepackSettings, where: Namespace, merger: Merger, deadline: Deadline) -> Published:
    """Merge several bundles into one and publish it.

    Leaves out bundles that do not fit into one directory tree with the others. The result's `bundle` is None if one of
    the sources is gone, or if no two fit together. Raises `BundleDamaged` with the id of a source to quarantine, and
    the errors of `unpacked`, `pack` and `StoreClient.publish`.
    """
    manifests = {bundle: settings.store.manifest(where, bundle, deadline) for bundle in merger.sources}
    merger = _fitting(merger, manifests)
    if len(merger.sources) < 2:
        return Published(None, "", 0, indexed=False)
    selections = [BundleSelection(where, manifests[bundle], entries) for bundle, entries in merger.entries.items()]
    draft = draft_of(manifests[merger.sources[0]], selections)
    draft = draft._replace(replaces=merger.sources, supersedes=merger.supersedes)
    with unpacked(settings, selections, deadline) as stage:
        return publish_stage(settings, stage, where, draft, deadline)


def _fitting(merger: Merger, manifests: dict[str, Manifest]) -> Merger:
    """Return the largest part of a merger whose files fit into one directory tree.

    Jobs choose names, so a name may be a file in one bundle and a directory in another, or belong to two entries if
    the rules for entries have changed. The other parts are merged by later runs.
    """
    parts: list[_Part] = []
    for bundle, entries in merger.entries.items():
        files = {path for entry in entries for path in manifests[bundle].entries[entry]}
        folders = {folder for path in files for folder in parents(path)}
        part = next((part for part in parts if part.has_room_for(files, folders)), None)
        if part is None:
            part = _Part(set(), set(), [])
            parts.append(part)
        part.files.update(files)
        part.folders.update(folders)
        part.bundles.append(bundle)
    chosen = max((part.bundles for part in parts), key=len, default=[])
    sources = [bundle for bundle in merger.sources if bundle in chosen or bundle not in merger.entries]
    return merger._replace(sources=sources, entries={bundle: merger.entries[bundle] for bundle in chosen})


class _Part(NamedTuple):
    """Bundles that can be unpacked into one directory."""

    files: set[str]
    folders: set[str]  # all parents of the files
    bundles: list[str]

    def has_room_for(self, files: set[str], folders: set[str]) -> bool:
        return self.files.isdisjoint(files | folders) and self.folders.isdisjoint(files)


def promote(
    settings: RepackSettings, where: Namespace, bundle: str, entries: Collection[str], deadline: Deadline, *, scope: str
) -> Published:
    """Publish entries of a bundle (default: all) in a more trusted scope.

    Raises `PromotionRefused`, else errors as in `compact`.
    """
    target = where._replace(scope=scope)
    chosen = _to_promote(settings, where, bundle, entries, deadline, scope=scope)
    draft = draft_of(chosen.manifest, [chosen])
    with packed_again(settings, chosen, target, deadline) as fd:
        return settings.store.publish(target, fd, draft, deadline)


def _to_promote(
    settings: RepackSettings, where: Namespace, bundle: str, entries: Collection[str], deadline: Deadline, *, scope: str
) -> BundleSelection:
    """Return what of a bundle is to be promoted; raises `PromotionRefused` and the errors of its manifest."""
    if _trust(where.scope) >= _trust(scope):
        raise PromotionRefused(problem=f"{scope} is not more trusted than {where.scope}")
    stay = PromotionRefused(problem=f"entries of {where.profile} stay in their user's own scope")
    if registry.is_of_user(where.profile):
        raise stay
    manifest = settings.store.manifest(where, bundle, deadline)
    if is_whole(where.profile) and OWNERS not in manifest.facts:
        raise stay
    missing = sorted(set(entries) - manifest.entries.keys())
    if missing:
        raise PromotionRefused(problem=f"bundle {bundle} has no entry {missing[0]!a}")
    return BundleSelection(where, manifest, sorted(entries) or sorted(manifest.entries))


def _trust(scope: str) -> int:
    kind, _, rest = scope.partition("-")
    if kind not in _TRUST or (kind == "site") == bool(rest):
        raise PromotionRefused(problem=f"{scope!a} is not a scope: user-UID-NAME, account-NAME or site")
    return _TRUST[kind]


def is_due(bundle: Bundle, day: int) -> bool:
    """Return whether a bundle is scrubbed on `day` (`maintenance.today`)."""
    return int(bundle.sha256[:8], 16) % DAYS == day % DAYS


def verify(settings: RepackSettings, where: Namespace, bundle: str, deadline: Deadline) -> str:
    """Return what is wrong with a bundle, or "".

    Raises errors that say nothing about the bundle: `ManifestUnreadable` for another format, `BundleGone`,
    `StoreFailed`, `DiskFailed`, `ProgramTooSlow`.
    """
    try:
        manifest = settings.store.manifest(where, bundle, deadline)
        if is_whole(where.profile):  # its manifest names no files
            with closing(os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)) as nowhere:
                _from_store(settings, deadline, BundleSelection(where, manifest, []), nowhere)
            return ""
        with unpacked(settings, [BundleSelection(where, manifest, sorted(manifest.entries))], deadline):
            return ""
    except (BundleDamaged, ManifestUnreadable) as error:
        if isinstance(error, ManifestUnreadable) and str(error.fields["problem"]).startswith(OTHER_FORMAT):
            raise
        return str(error.fields["problem"])


def draft_of(first: Manifest, selections: Sequence[BundleSelection]) -> Draft:
    """Return the draft of a bundle with the selected entries; producer and facts are those of `first`."""
    entries: Entries = {}
    origins = {}
    for selection in selections:
        source = selection.manifest
        for entry in selection.entries:
            entries[entry] = source.entries[entry]
            origins[entry] = source.origins.get(entry) or Origin(*source.producer, source.scope, source.bundle)
    return Draft(first.producer, first.facts, entries, origins)


@contextmanager
def packed_again(
    settings: RepackSettings, chosen: BundleSelection, target: Namespace, deadline: Deadline
) -> Iterator[int]:
    """Yield, for a `with`, a descriptor of a bundle to publish with what was chosen; raises the errors of `unpacked`.

    A whole stays as it is, byte for byte: its manifest names no files to compare.
    """
    if is_whole(target.profile):
        with _whole(settings, chosen, deadline) as fd:
            yield fd
    else:
        with unpacked(settings, [chosen], deadline) as stage, packed_stage(stage, deadline) as fd:
            yield fd


@contextmanager
def _whole(settings: RepackSettings, chosen: BundleSelection, deadline: Deadline) -> Iterator[int]:
    with disk_errors(settings.stage):
        ensure_dir(settings.stage, 0o700)
        with opened_dir(settings.stage) as top, Reservation(top) as space:
            space.hold(chosen.manifest.size)
            # A file without a name leaves nothing behind if this process dies.
            with closing(os.open(".", os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600, dir_fd=top)) as fd:
                space.hold(0)
                _from_store(settings, deadline, chosen, fd)
                yield fd


def publish_stage(
    settings: RepackSettings, stage: str, where: Namespace, draft: Draft, deadline: Deadline
) -> Published:
    """Pack `entries/` of the stage and publish the bundle as the store's owner."""
    publish = settings.store.publish_compacted if draft.replaces else settings.store.publish
    with packed_stage(stage, deadline) as fd:
        return publish(where, fd, draft, deadline)


@contextmanager
def packed_stage(stage: str, deadline: Deadline) -> Iterator[int]:
    """Pack `entries/` of the stage for a `with`; yields a descriptor of the bundle."""
    with closing(pack(f"{stage}/entries", f"{stage}/bundle.sqsh", deadline)) as fd:
        yield fd


@contextmanager
def unpacked(
    settings: RepackSettings,
    selections: Sequence[BundleSelection],
    deadline: Deadline,
    copy: Callable[[BundleSelection, int], None] | None = None,
) -> Iterator[str]:
    """Unpack and verify entries for a `with`; yields a directory of root's that has them in `entries/`.

    `copy` writes a bundle into an empty file and raises if the bytes do not match the manifest; by default it fetches
    from the store. No two of `selections` may have a file in common.

    Raises `BundleDamaged` for the first bundle that does not match its manifest, `DiskFailed` if the disk fails or
    has too little space, `ProgramTooSlow`, and the errors of `bundles.fetch`.
    """
    with disk_errors(settings.stage):
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


def clear_stage(stage: str) -> None:
    """Remove what a process left in a stage that died. The caller is the only one that uses it. Raises `OSError`."""
    with suppress(FileNotFoundError), opened_dir(stage) as parent:
        remove_tree(parent, _STAGE, after(_REMOVAL))


def _fill(
    settings: RepackSettings,
    top: int,
    selections: Sequence[BundleSelection],
    deadline: Deadline,
    copy: Callable[[BundleSelection, int], None],
) -> None:
    sizes = [file.size for selection in selections for file in _files(selection)]
    with Reservation(top) as space:
        # The bundles, the unpacked files, and root's copy of them. Sizes in a manifest are not trusted.
        space.hold(sum(selection.manifest.size for selection in selections) + 2 * sum(sizes))
        sources = []
        for selection in selections:
            sources.append(_fetched(settings, top, selection, copy))
            space.hold(space.size - selection.manifest.size)
        os.mkdir("unpacked", 0o700, dir_fd=top)
        with opened_dir("unpacked", top) as unpacked_fd:
            os.fchown(unpacked_fd, settings.validator.uid, settings.validator.gid)
            bounds = Bounds(max(sizes, default=0), partial(_require_room, settings))
            space.hold(sum(sizes))
            extract(sources, unpacked_fd, "all", settings.validator, deadline, bounds)
        for source in sources:
            os.unlink(os.path.basename(source.path), dir_fd=top)
        os.mkdir("entries", 0o755, dir_fd=top)
        with opened_dir("entries", top) as fd:
            stage = Stage(fd, space, copies=1)  # one for all: entries of several bundles may share a directory
            for selection in selections:
                _collect_verified(settings, top, stage, selection, deadline)
        remove_tree(top, "unpacked", after(_REMOVAL))


def _files(selection: BundleSelection) -> list[File]:
    return [file for entry in selection.entries for file in selection.manifest.entries[entry].values()]


def _require_room(settings: RepackSettings) -> None:
    """Raise `DiskFailed` if the stage's disk is at its floor."""
    if not room(settings.stage):
        raise DiskFailed(what=settings.stage, problem="the disk has no room for more")


def _from_store(settings: RepackSettings, deadline: Deadline, selection: BundleSelection, fd: int) -> None:
    """Fetch a bundle from the store, which verifies its SHA-256."""
    where, manifest = selection.namespace, selection.manifest
    offer = Offer(where.scope, manifest.bundle, manifest.sha256, manifest.size, [], whole=True)
    settings.store.fetch(where, offer, deadline, into=fd)


def _fetched(
    settings: RepackSettings, top: int, selection: BundleSelection, copy: Callable[[BundleSelection, int], None]
) -> Source:
    """Copy a bundle into the stage; return it as a source with the files to unpack."""
    manifest = selection.manifest
    name = f"{manifest.bundle}.sqsh"
    with closing(os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444, dir_fd=top)) as fd:
        copy(selection, fd)
    whole = 0 < len(selection.entries) == len(manifest.entries)
    files = None if whole else [path for entry in selection.entries for path in manifest.entries[entry]]
    return Source(os.path.join(settings.stage, _STAGE, name), files)


def _collect_verified(
    settings: RepackSettings, top: int, stage: Stage, selection: BundleSelection, deadline: Deadline
) -> None:
    """Copy one bundle's entries into root's stage and compare them with the manifest."""
    entries = {entry: selection.manifest.entries[entry] for entry in selection.entries}
    entry_of = {path: entry for entry, files in entries.items() for path in files}
    collected = collect(
        top,
        "unpacked/all",
        owner=settings.validator.uid,
        entry_of=entry_of.get,
        skip=(),
        stage=stage,
        limits=HarvestLimits(sum(file.size for file in _files(selection)), 1 << 31, deadline),
    )
    if UNREADABLE in collected.rejected:  # root can read all of it, unless the node's disk or descriptors fail
        raise DiskFailed(what=settings.stage, problem="what was unpacked cannot be read")
    if collected.truncated:
        raise DiskFailed(what=settings.stage, problem=collected.truncated)
    if _content(collected.entries) != _content(entries):
        raise BundleDamaged(bundle=selection.manifest.bundle, problem="its entries are not those of its manifest")


def _content(entries: Entries) -> dict[str, dict[str, tuple[int, str]]]:
    # Without mtimes, because a squashfs keeps whole seconds.
    return {entry: {path: (file.size, file.sha256) for path, file in files.items()} for entry, files in entries.items()}
