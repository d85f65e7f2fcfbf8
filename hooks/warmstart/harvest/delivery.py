"""The way of one profile's valid entries from a node's stage into the store, or into the node's spool.

Root packs them, the store's owner publishes them; what the store does not take now is kept. Used by the step `harvest`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from warmstart.audit import events
from warmstart.audit.journal import Journal
from warmstart.errors import StoreError
from warmstart.harvest.pack import pack
from warmstart.host.deadline import Deadline
from warmstart.host.process import ProgramTooSlow
from warmstart.host.worker import WorkerSilent
from warmstart.policy.compiled import Policy
from warmstart.profiles import registry
from warmstart.record import Record
from warmstart.store import layout, precedence, spool, usage
from warmstart.store.client import StoreClient
from warmstart.store.layout import Namespace
from warmstart.store.manifest import Draft, Entries, Producer
from warmstart.store.precedence import Base
from warmstart.store.spool import Spooled

ASKING_SECONDS = 5.0  # for the store to say what it has; without that, all that was not seeded counts as new
MOST_EXAMPLES = 20


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
        self._quota = usage.quota(record.publish_scope, policy.maintenance)

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
        if reason and reason != precedence.UNCHANGED:
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
            self._reject_all(entries, precedence.SUPERSEDED)
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
        """Return what the manifest is made of; all of it is the parent's own knowledge (design, rule 3)."""
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
        dropped = spool.keep(self._spool, stage, spooled, self._spool_limit)
        self._audit.emit(
            events.BUNDLE_SPOOLED,
            profile=self.place.profile,
            namespace=self.place.name,
            entries=len(draft.entries),
            error=error.as_audit(),
        )
        for name in dropped:
            self._audit.emit(events.BUNDLE_DROPPED, spooled=name, reason=spool.NO_ROOM)
