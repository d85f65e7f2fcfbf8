"""Deliver a profile's valid entries from the stage to the store, or spool the bundle on this node.

Root packs, the store's owner publishes. What the store does not take now is kept:

    <node>/spool/                              root, 0700
        <microseconds>.<job>.<run>.<profile>/  one bundle; the names sort by age
            bundle.sqsh  draft.json

A bundle enters the spool by renaming a directory that is complete and synced, and leaves it once the store has it.
Publishing is idempotent: after a crash between the two, the next attempt finds the entries published and removes the
bundle. One process at a time publishes or drops; the lock is the directory itself.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import NamedTuple

from warmstart.audit import events
from warmstart.audit.journal import Journal
from warmstart.errors import ResourceError, StoreError, WarmstartError
from warmstart.harvest.pack import pack
from warmstart.host import files, wire
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import (
    DIRECTORY,
    copy_hashed,
    ensure_dir,
    open_regular,
    opened_dir,
    read_small,
    remove_tree,
    replace_file,
)
from warmstart.host.identity import WorkerSilent
from warmstart.host.process import ProgramTooSlow
from warmstart.host.wire import Json
from warmstart.policy.compiled import Maintenance, Policy
from warmstart.profiles import registry
from warmstart.record import Record
from warmstart.store import bundles, index, layout, manifest
from warmstart.store.bundles import Published
from warmstart.store.client import StoreClient
from warmstart.store.index import Base
from warmstart.store.layout import Namespace
from warmstart.store.manifest import Draft, Entries, Producer

ASKING_SECONDS = 5.0  # for the store to say what it has; without that, all that was not seeded counts as new
MOST_EXAMPLES = 20
BUNDLE = "bundle.sqsh"
DRAFT = "draft.json"
NO_ROOM = "harvest.spool is used up"
DAMAGED = "damaged"

_REMOVAL = 10.0  # seconds


class Late(Exception):  # never leaves the harvest
    """The budget was used up before the profile was done."""


@contextmanager
def in_time(deadline: Deadline) -> Iterator[None]:
    """Tell what the budget ended (`Late`) from what failed."""
    try:
        yield
    except (WorkerSilent, ProgramTooSlow) as error:
        if deadline.expired():
            raise Late from error
        raise


class Delivery:
    """One profile of one run, and its place in the store."""

    def __init__(  # noqa: PLR0917 - what a step's context has of it
        self, policy: Policy, record: Record, audit: Journal, store: StoreClient, spool_directory: str, profile: str
    ) -> None:
        """`spool_directory` is the node's."""
        self.tool = registry.get(profile, policy.profiles)
        self.seeded = record.seeded[profile]
        self.place = Namespace(policy.paths.store, record.publish_scope, profile, self.seeded.namespace)
        self.keeps_newest = self.tool.keeps == "newest"
        self._spool_limit = policy.harvest.spool
        self._record = record
        self._audit = audit
        self._store = store
        self._spool = spool_directory
        self._quota = bundles.quota(record.publish_scope, policy.maintenance)

    def known(self, deadline: Deadline) -> list[str]:
        """Return the entries that need not be collected: the store has them, or the job was seeded with them.

        Where the store does not answer that is what was seeded: the harvest is spooled then.
        """
        record = self._record
        asking = deadline.within(ASKING_SECONDS)
        try:
            there = self._store.known_entries(
                self.place, record.user, record.uid, asking, quota=self._quota, newest=self.keeps_newest
            )
        except (layout.StoreFailed, WorkerSilent):
            there = []
        # A newer one has the name of what it grew from.
        return there if self.keeps_newest else [*self.seeded.entries, *there]

    def newer(self, entries: Entries, deadline: Deadline) -> Entries:
        """Return those that the store should have beside, or instead of, what it has.

        Of a profile whose first publisher keeps its entries, all; where the store is silent, publishing decides.
        """
        if not self.keeps_newest or not entries:
            return entries
        try:
            reason = self._store.needless(self.place, self._begun, entries, deadline.within(ASKING_SECONDS))
        except (layout.StoreFailed, WorkerSilent):
            return entries
        if reason and reason != index.UNCHANGED:
            self._reject_all(entries, reason)
        return {} if reason else entries

    def publish(self, stage: str, entries: Entries, deadline: Deadline) -> str | None:
        """Pack `stage`/entries and publish it; return the bundle's id.

        None where others have published all of it meanwhile. `Late`; the store's errors, and then it is spooled.
        """
        with in_time(deadline):
            bundle = pack(f"{stage}/entries", f"{stage}/bundle.sqsh", deadline)
        draft = self._draft(entries)
        try:
            published = self._store.publish(self.place, bundle, draft, deadline, quota=self._quota)
        except (layout.StoreFull, layout.StoreFailed, WorkerSilent) as error:
            self._keep(stage, draft, error)
            raise
        finally:
            os.close(bundle)
        if published.bundle is None and self.keeps_newest:
            self._reject_all(entries, index.SUPERSEDED)
        if published.bundle:
            named = {"profile": self.place.profile, "namespace": self.place.name}
            self._audit.emit(events.BUNDLE_PUBLISHED, **named, **published._asdict())
        return published.bundle

    def reject(self, reasons: Mapping[str, int], examples: list[tuple[str, str]]) -> None:
        """Say in the audit what is not taken: reason → how many, and some of (name, reason)."""
        if reasons:
            shown = examples[:MOST_EXAMPLES]
            self._audit.emit(events.ENTRY_REJECTED, profile=self.place.profile, reasons=dict(reasons), examples=shown)

    def _reject_all(self, entries: Entries, reason: str) -> None:
        self.reject({reason: len(entries)}, [(entry, reason) for entry in entries])

    @property
    def _begun(self) -> Base | None:
        """What the job began with, where the newest wins."""
        return Base(*self.seeded.based_on) if self.seeded.based_on else None

    def _draft(self, entries: Entries) -> Draft:
        """Return what the manifest is made of; all of it is the parent's own knowledge.

        See docs/architecture.md, rule 3.
        """
        record = self._record
        producer = Producer(record.job_id, record.user, record.uid, record.node, record.cluster)
        draft = Draft(producer, record.facts, entries)
        if not self.keeps_newest:
            return draft
        begun = self._begun
        return draft._replace(based_on=begun.bundle if begun and begun.scope == self.place.scope else "")

    def _keep(self, stage: str, draft: Draft, error: StoreError) -> None:
        """Keep on this node what the store did not take; a later epilog, or maintenance, publishes it."""
        spooled = Spooled(*self.place[1:], draft, f"{self._record.run_name}.{self.place.profile}")
        dropped = keep(self._spool, stage, spooled, self._spool_limit)
        self._audit.emit(
            events.BUNDLE_SPOOLED,
            profile=self.place.profile,
            namespace=self.place.name,
            entries=len(draft.entries),
            error=error.as_audit(),
        )
        for name in dropped:
            self._audit.emit(events.BUNDLE_DROPPED, spooled=name, reason=NO_ROOM)


class SpoolFailed(ResourceError):
    """This node's disk did not take, or does not give, what the store had not taken."""

    code = "spool-failed"
    template = "{path}: {problem}"
    hint = "is there space left on the disk of the node's state?"


class Spooled(NamedTuple):
    """Where a bundle belongs, and what its manifest is made of."""

    scope: str
    profile: str
    namespace: str
    draft: Draft
    run: str  # job, run id and profile: the end of its name
    sha256: str = ""  # of the squashfs, set by `keep`


class Delivered(NamedTuple):
    """One bundle that left the spool."""

    name: str
    spooled: Spooled | None  # None: nobody can tell any more
    published: Published | None
    reason: str  # why it was dropped, else ""


def keep(directory: str, stage: str, spooled: Spooled, limit: int) -> list[str]:
    """Move `bundle.sqsh` out of the run's stage into the spool; return what had to go for it, oldest first.

    `limit` is in bytes, for the whole spool; a bundle that is larger on its own goes at once. `SpoolFailed`.
    """
    with _disk_errors(directory):
        ensure_dir(directory, 0o700)
        with opened_dir(directory) as parent, opened_dir(stage) as source:
            _prepare(source, spooled)
            name = f"{time.time_ns() // 1000:020d}.{spooled.run}"
            os.rename("spooled", name, src_dir_fd=source, dst_dir_fd=parent)
            os.fsync(parent)
            with _turn(parent) as mine:
                return _make_room(parent, limit) if mine else []


def deliver(directory: str, store: StoreClient, rules: Maintenance, deadline: Deadline) -> Iterator[Delivered]:
    """Publish what is spooled, the oldest first, and yield each one that has left the spool.

    `rules` are the scopes' quotas. Ends at the deadline and where the store fails, with its
    error; what is left stays. Nothing happens while another process is at it.
    """
    try:
        parent = os.open(directory, DIRECTORY)
    except FileNotFoundError:
        return
    try:
        with _disk_errors(directory), _turn(parent) as mine:
            for name in sorted(os.listdir(parent)) if mine else []:
                if deadline.expired():
                    return
                yield _deliver_one(parent, name, partial(_publish, store, rules, deadline))
    finally:
        os.close(parent)


def _deliver_one(parent: int, name: str, publish: Callable[[int, Spooled], Published]) -> Delivered:
    spooled = None
    published = None
    reason = ""
    try:
        with opened_dir(name, parent) as item:
            spooled = _load(item)
            bundle = open_regular(BUNDLE, item)
            try:
                if copy_hashed(bundle).sha256 != spooled.sha256:
                    raise ValueError(DAMAGED)
                published = publish(bundle, spooled)
            finally:
                os.close(bundle)
    except (bundles.PublishBlocked, bundles.QuotaExceeded, ValueError, TypeError, FileNotFoundError) as error:
        reason = str(error) if isinstance(error, WarmstartError) else DAMAGED
    remove_tree(parent, name, after(_REMOVAL))
    return Delivered(name, spooled, published, reason)


def _publish(store: StoreClient, rules: Maintenance, deadline: Deadline, bundle: int, spooled: Spooled) -> Published:
    place = Namespace(store.path, *spooled[:3])
    return store.publish(place, bundle, spooled.draft, deadline, quota=bundles.quota(spooled.scope, rules))


def _prepare(stage: int, spooled: Spooled) -> None:
    """Make the directory `spooled` in the stage, whole and on disk."""
    os.mkdir("spooled", 0o700, dir_fd=stage)
    with opened_dir("spooled", stage) as item:
        os.rename(BUNDLE, BUNDLE, src_dir_fd=stage, dst_dir_fd=item)
        bundle = open_regular(BUNDLE, item)
        try:
            os.fsync(bundle)
            known = spooled._replace(sha256=copy_hashed(bundle).sha256)
        finally:
            os.close(bundle)
        replace_file(item, DRAFT, _encode(known), 0o600)


def _make_room(parent: int, limit: int) -> list[str]:
    names = sorted(os.listdir(parent))
    sizes = {name: _size(parent, name) for name in names}
    total = sum(sizes.values())
    dropped = []
    for name in names:
        if total <= limit:
            break
        remove_tree(parent, name, after(_REMOVAL))
        total -= sizes[name]
        dropped.append(name)
    return dropped


def _size(parent: int, name: str) -> int:
    with suppress(OSError):
        return os.stat(f"{name}/{BUNDLE}", dir_fd=parent, follow_symlinks=False).st_size
    return 0


def _load(item: int) -> Spooled:
    try:
        raw = read_small(DRAFT, manifest.LARGEST, item)
    except OSError as error:
        if error.errno != errno.EFBIG:
            raise
        raise ValueError(DAMAGED) from error
    return _decode(raw)


def _encode(spooled: Spooled) -> bytes:
    draft = spooled.draft
    text: dict[str, object] = {"producer": draft.producer._asdict(), "facts": draft.facts, "entries": draft.entries}
    if draft.based_on is not None:
        text["based_on"] = draft.based_on
    return json.dumps({**spooled._asdict(), "draft": text}).encode()


def _decode(data: bytes) -> Spooled:
    """Return what `_encode` wrote; `ValueError` for anything else."""
    raw: Json = json.loads(data)
    try:
        written = raw.pop("draft")
        draft = Draft(
            wire.from_object(Producer, written["producer"]),
            wire.decode(dict[str, str], written["facts"]),
            wire.decode(Entries, written["entries"]),
            based_on=wire.decode(str | None, written.get("based_on")),
        )
        texts = wire.decode(dict[str, str], raw)
        return Spooled(**texts, draft=draft)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(DAMAGED) from error


@contextmanager
def _disk_errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise SpoolFailed(path=path, problem=error.strerror or str(error)) from error


@contextmanager
def _turn(directory: int) -> Iterator[bool]:
    """Tell whether this process may publish and drop now; for the length of a `with`."""
    mine = files.try_flock(directory)
    try:
        yield mine
    finally:
        if mine:
            files.unlock(directory)
