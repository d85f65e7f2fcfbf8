"""The way of one profile's valid entries from a node's stage into the store, or into the node's spool.

Root packs them, the store's owner publishes them; what the store does not take now is kept. Used by the step `harvest`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from warmstart.audit import events
from warmstart.audit.journal import Journal
from warmstart.errors import StoreError
from warmstart.host.children import ProgramTooSlow
from warmstart.host.deadline import Deadline
from warmstart.host.worker import Worker, WorkerSilent
from warmstart.policy.compiled import Policy
from warmstart.profiles import registry
from warmstart.record import Record
from warmstart.store import bundles, layout, precedence, spool, usage
from warmstart.store.layout import Namespace
from warmstart.store.manifest import Entries
from warmstart.store.pack import pack
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
        self, policy: Policy, record: Record, audit: Journal, store: Worker, spool_directory: str, profile: str
    ) -> None:
        """`store` is a process of the store's owner."""
        self.tool = registry.get(profile, policy.profiles)
        self.seeded = record.seeded[profile]
        self.place = Namespace(policy.paths.store, record.publish_scope, profile, self.seeded.namespace)
        self.keeps_newest = self.tool.keeps == "newest"
        self._policy = policy
        self._record = record
        self._audit = audit
        self._store = store
        self._spool = spool_directory
        self._owner = f"{record.node}-{record.run_id}"
        self._quota = usage.quota(record.publish_scope, policy.tend)

    def known(self, deadline: Deadline) -> list[str]:
        """Return the entries that need not be collected: the store has them, or the job was seeded with them.

        Where the store does not answer that is what was seeded: the harvest is spooled then.
        """
        record = self._record
        asked = (self.place, record.user, record.uid, self._owner, self._quota, self.keeps_newest)
        try:
            there: list[str] = self._store.call(bundles.known_entries, *asked, deadline=deadline.within(ASKING_SECONDS))
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
        asked = (self.place, self.seeded.based_on, entries, self._owner)
        try:
            reason: str = self._store.call(precedence.needless, *asked, deadline=deadline.within(ASKING_SECONDS))
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
            asked = (self.place, bundle, draft, self._owner, self._quota)
            with Worker(self._policy.store_user, keep=(bundle,)) as worker:
                published: dict[str, Any] = worker.call(bundles.publish_bundle, *asked, deadline=deadline)
        except (layout.StoreFull, layout.StoreFailed, WorkerSilent) as error:
            self._keep(stage, draft, error)
            raise
        finally:
            os.close(bundle)
        if published["bundle"] is None and self.keeps_newest:
            self._reject_all(entries, precedence.SUPERSEDED)
        if published["bundle"]:
            named = {"profile": self.place.profile, "namespace": self.place.name}
            self._audit.emit(events.BUNDLE_PUBLISHED, **named, **published)
        name: str | None = published["bundle"]
        return name

    def reject(self, reasons: Mapping[str, int], examples: list[tuple[str, str]]) -> None:
        """Say in the audit what is not taken: reason → how many, and some of (name, reason)."""
        if reasons:
            shown = examples[:MOST_EXAMPLES]
            self._audit.emit(events.ENTRY_REJECTED, profile=self.place.profile, reasons=dict(reasons), examples=shown)

    def _reject_all(self, entries: Entries, reason: str) -> None:
        self.reject({reason: len(entries)}, [(entry, reason) for entry in entries])

    def _draft(self, entries: Entries) -> dict[str, Any]:
        """Return what the manifest is made of; all of it is the parent's own knowledge (design, rule 3)."""
        record = self._record
        producer = {
            "job": record.job_id,
            "user": record.user,
            "uid": record.uid,
            "node": record.node,
            "cluster": record.cluster,
        }
        draft: dict[str, Any] = {"producer": producer, "facts": record.facts, "entries": entries}
        if self.keeps_newest:
            based_on = self.seeded.based_on
            draft["based_on"] = based_on[1] if based_on and based_on[0] == self.place.scope else ""
        return draft

    def _keep(self, stage: str, draft: dict[str, Any], error: StoreError) -> None:
        """Keep on this node what the store did not take; a later epilog, or upkeep, publishes it."""
        spooled = Spooled(*self.place[1:], draft, f"{self._record.run_name}.{self.place.profile}")
        dropped = spool.keep(self._spool, stage, spooled, self._policy.harvest.spool)
        self._audit.emit(
            events.BUNDLE_SPOOLED,
            profile=self.place.profile,
            namespace=self.place.name,
            entries=len(draft["entries"]),
            error=error.as_audit(),
        )
        for name in dropped:
            self._audit.emit(events.BUNDLE_DROPPED, spooled=name, reason=spool.NO_ROOM)
