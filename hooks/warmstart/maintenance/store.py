"""Maintenance of the store: sweep, compaction, garbage collection, scrub; on one host (docs/operations/maintenance.md).

Root decides and audits; every access to the store runs as its owner (`StoreClient`). If a namespace fails, the error is
audited and the other namespaces are still done.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import NamedTuple

from warmstart.attempts import merges
from warmstart.audit import events
from warmstart.audit.line import Event
from warmstart.errors import WarmstartError
from warmstart.images.store import eviction, published
from warmstart.images.store.client import ImageStoreClient
from warmstart.images.store.layout import NOBODY
from warmstart.maintenance.bundles import (
    STORE_STEP,
    bundle_deadline,
    labels,
    namespace_of,
    namespaces,
    repack_settings,
    survey,
)
from warmstart.maintenance.wings import of_wings
from warmstart.profiles.contract import is_whole
from warmstart.repack import rewrite
from warmstart.session import MaintenanceBusy, Session
from warmstart.store import maintenance, reports
from warmstart.store.bundles import BundleDamaged
from warmstart.store.layout import Namespace
from warmstart.store.maintenance import Bundle, Merger

REPLACED = "replaced by a compacted bundle"


class StoreReport(NamedTuple):
    """Counts of what maintenance did in the store."""

    merged: int = 0  # runs of jobs on several nodes, which were published
    swept: int = 0  # files of publishers that died, and empty namespaces
    compacted: int = 0  # new bundles, each merged from several
    removed: int = 0  # bundles
    verified: int = 0  # bundles
    quarantined: int = 0  # bundles
    evicted: int = 0  # images
    failed: int = 0  # errors


class StoreMaintenance:
    """Maintenance of the store, under the store's maintenance lock."""

    def __init__(self, session: Session) -> None:
        """Take the lock and hold it until the session ends. Raises `MaintenanceBusy` if another host holds it."""
        self._session = session
        self.report = StoreReport()
        if not session.store.lock(session.store_deadline()):
            raise MaintenanceBusy(what="on the store, on this or another host")

    def namespaces(self) -> Iterator[Namespace]:
        """Yield the store's namespaces, without those of scopes that fail."""
        return namespaces(self._session.store, self._failed)

    def bundles(self) -> Iterator[Bundle]:
        """Yield the store's bundles scope by scope, without those of namespaces that fail."""
        return survey(self._session.store, self._failed)

    def sweep(self, where: Namespace) -> None:
        """Remove files of publishers that died, and replaced bundles after their grace period."""
        session, now = self._session, time.time()
        swept = session.store.run_in(session.store_deadline(), maintenance.sweep, where, now)
        if swept:
            session.audit.emit(events.STORE_SWEPT, namespace=where.name, scope=where.scope, names=swept[:20])
        replaced = session.store.run_in(session.store_deadline(), maintenance.superseded, where, now)
        self._remove(where, replaced, REPLACED)
        self._count(swept=len(swept))

    def compact(self, where: Namespace, fewest: int = rewrite.FEWEST) -> None:
        """Merge bundles into ones of at most `rewrite.MOST_BYTES`."""
        session = self._session
        if is_whole(where.profile):
            return
        deadline, plan = session.store_deadline(), maintenance.plan_compaction
        for merger in session.store.run_in(deadline, plan, where, fewest, rewrite.MOST_BYTES):
            with self.isolated():  # the bundles of other users are still merged
                self._compact(where, merger)

    def collect_garbage(self) -> None:
        """Remove the bundles that the policy's `maintenance` section lets expire; one scope after the other."""
        for _, bundles in groupby(self.bundles(), lambda bundle: bundle.scope):
            self._collect_garbage(bundles)

    def _collect_garbage(self, bundles: Iterable[Bundle]) -> None:
        going: dict[tuple[Namespace, str], list[str]] = {}
        for bundle, reason in maintenance.expired(bundles, self._session.policy.maintenance, time.time()):
            going.setdefault((namespace_of(bundle, self._session.store), reason), []).append(bundle.bundle)
        for (where, reason), names in going.items():
            with self.isolated():
                self._remove(where, names, reason)

    def remove(self, bundles: Iterable[Bundle], reason: str) -> None:
        """Remove bundles, whoever uses them: a node that has a copy keeps it until it prunes its copies."""
        for bundle in bundles:
            self._remove(namespace_of(bundle, self._session.store), [bundle.bundle], reason)

    def remove_empty(self) -> None:
        """Remove namespaces that have been empty for a day."""
        session = self._session
        for where in self.namespaces():
            with self.isolated():
                if session.store.worker.run(session.store_deadline(), maintenance.remove_empty, where, time.time()):
                    names = [where.profile]
                    session.audit.emit(events.STORE_SWEPT, namespace=where.name, scope=where.scope, names=names)
                    self._count(swept=1)

    def scrub(self, bundles: Iterable[Bundle]) -> dict[str, str]:
        """Verify bundles and quarantine the damaged ones. Return their problems by bundle id."""
        damaged = {}
        settings = repack_settings(self._session)
        for bundle in bundles:
            where = namespace_of(bundle, self._session.store)
            problem = ""
            with self.isolated():
                problem = rewrite.verify(settings, where, bundle.bundle, bundle_deadline())
                self._count(verified=1)
            if problem:
                damaged[bundle.bundle] = problem
                self._quarantine(where, bundle.bundle, problem)
        return damaged

    def all(self) -> StoreReport:
        """Run every part; scrub only the bundles that are due today."""
        self._sweep_top()
        with self._session.isolated("parts"):
            self._count(merged=merges.run(self._session))
        for where in self.namespaces():
            with self.isolated():
                self.sweep(where)
                self.compact(where)
        self.collect_garbage()
        self.remove_empty()
        self.scrub(bundle for bundle in self.bundles() if rewrite.is_due(bundle, maintenance.today()))
        self.maintain_images()
        with self.isolated():
            self._remove_reports()
        for wing in of_wings():
            for act in wing.store.values():
                with self.isolated():
                    self._count(swept=act(self._session) or 0)
        self._session.store.run(self._session.store_deadline(), maintenance.record_maintained)
        return self.report

    def maintain_images(self) -> None:
        """Do what is to be done in the shared store of images and in each private one."""
        shared = ImageStoreClient(self._session.store.worker, self._session.store.path)
        stores = [shared.at(path) for path in shared.run(self._session.store_deadline(), eviction.stores)]
        for part in (self._evict_images, self._record_images):
            for store in stores:
                with self.isolated():
                    part(store)

    def _evict_images(self, store: ImageStoreClient) -> None:
        """Evict images down to the policy's watermarks, and remove files of producers that died."""
        rules, deadline = self._session.policy.images, self._session.store_deadline()
        gone = store.run(deadline, eviction.make_room, 0, rules.keep, NOBODY)
        for name in gone:
            self._session.audit.emit(events.IMAGE_EVICTED, name=name, reason="above images.keep.high")
        self._count(evicted=len(gone))

    def _record_images(self, store: ImageStoreClient) -> None:
        """Write down the hashes of images whose producers died before they did."""
        for name in store.run(self._session.store_deadline(), published.unrecorded):
            with self.isolated():
                # A damaged one is found, and replaced, by the next job that wants it.
                store.run(bundle_deadline(), published.check_bytes, name, "maintenance")

    def _remove_reports(self) -> None:
        """Remove reports for jobs' users that are too old; all of them where none are written."""
        session = self._session
        before = time.time() - (session.policy.maintenance.reports or 0)
        self._count(swept=session.store.run(session.store_deadline(), reports.remove_before, before))

    def _sweep_top(self) -> None:
        swept = self._session.store.run(self._session.store_deadline(), maintenance.sweep_top, time.time())
        if swept:
            self._session.audit.emit(events.STORE_SWEPT, names=swept[:20])
        self._count(swept=len(swept))

    def _compact(self, where: Namespace, merger: Merger) -> None:
        session = self._session
        try:
            made = rewrite.compact(repack_settings(session), where, merger, bundle_deadline())
        except BundleDamaged as error:
            self._quarantine(where, str(error.fields["bundle"]), str(error.fields["problem"]))
            return
        if made.bundle:
            entries = sum(map(len, merger.entries.values()))
            session.audit.emit(
                events.BUNDLE_COMPACTED, **labels(where), bundle=made.bundle, replaces=merger.sources, entries=entries
            )
            self._count(compacted=1)

    def _remove(self, where: Namespace, names: list[str], reason: str) -> None:
        deadline = self._session.store_deadline()
        removed = self._session.store.run_in(deadline, maintenance.remove, where, names) if names else []
        for bundle in removed:
            self._audit(events.BUNDLE_REMOVED, where, bundle, reason)
        self._count(removed=len(removed))

    def _quarantine(self, where: Namespace, bundle: str, problem: str) -> None:
        if self._session.store.run_in(self._session.store_deadline(), maintenance.quarantine, where, bundle):
            self._audit(events.BUNDLE_QUARANTINED, where, bundle, problem)
            self._count(quarantined=1)

    def _audit(self, event: Event, where: Namespace, bundle: str, reason: str) -> None:
        self._session.audit.emit(event, **labels(where), bundle=bundle, reason=reason)

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Audit and count what a `with` block raises, so that the next part is done."""
        try:
            yield
        except WarmstartError as error:
            self._failed(error)

    def _failed(self, error: WarmstartError) -> None:
        self._session.failed(STORE_STEP, error)
        self._count(failed=1)

    def _count(self, **more: int) -> None:
        counts = self.report._asdict()
        self.report = StoreReport(**{name: count + more.get(name, 0) for name, count in counts.items()})
