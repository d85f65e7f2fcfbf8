"""Maintenance of the store: sweep, compaction, garbage collection, scrub. One host at a time (docs/maintenance.md).

Root decides and audits; whatever touches the store is done by its owner in the worker. A namespace that fails is
audited and left, the others are done.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import NamedTuple

from warmstart.audit import events
from warmstart.entry.maintenance.node import MaintenanceBusy
from warmstart.entry.maintenance.session import MaintenanceSession
from warmstart.errors import WarmstartError
from warmstart.images.client import ImageStoreClient
from warmstart.images.layout import NOBODY
from warmstart.repack import merge
from warmstart.store import maintenance
from warmstart.store.bundles import BundleDamaged, PublishBlocked
from warmstart.store.layout import Namespace
from warmstart.store.maintenance import Bundle, Merger

STEP = "store"
REPLACED = "replaced by a compacted bundle"


class StoreReport(NamedTuple):
    """What was done in the store."""

    swept: int = 0  # left by dead publishers
    compacted: int = 0  # new bundles, each made of several
    removed: int = 0  # bundles
    verified: int = 0
    quarantined: int = 0
    evicted: int = 0  # images
    discarded: int = 0  # images that were in quarantine
    failed: int = 0


class StoreMaintenance:
    """One run over the store, under its lock."""

    def __init__(self, run: MaintenanceSession) -> None:
        """`NodeBusy` where another host has the lock; it is held for as long as the run's worker lives."""
        self._run = run
        self._store = run.store.path
        self.report = StoreReport()
        if not run.store.lock(run.store_deadline()):
            raise MaintenanceBusy(what="on the store, from this or another host")

    def namespaces(self) -> list[Namespace]:
        """Return the store's namespaces."""
        return self._run.store.namespaces(self._run.store_deadline())

    def bundles(self) -> list[Bundle]:
        """Return the store's bundles."""
        return self._run.store.survey(self._run.store_deadline())

    def sweep(self, where: Namespace) -> None:
        """Remove what dead publishers left, and bundles that were replaced long enough ago."""
        run, now = self._run, time.time()
        swept = run.store.sweep(where, now, run.store_deadline())
        if swept:
            run.audit.emit(events.STORE_SWEPT, namespace=where.name, scope=where.scope, names=swept[:20])
        self._remove(where, run.store.superseded(where, now, run.store_deadline()), REPLACED)
        self._count(swept=len(swept))

    def compact(self, where: Namespace, fewest: int = merge.FEWEST) -> None:
        """Make one bundle of many, of which a node can fetch more than one: larger ones no job would be seeded with."""
        run = self._run
        most = min(merge.MOST_BYTES, run.policy.seed.max_fetch // 2)
        for merger in run.store.plan_compaction(where, run.store_deadline(), fewest=fewest, most_bytes=most):
            self._compact(where, merger)

    def collect_garbage(self) -> None:
        """Remove what the policy says has to go."""
        going: dict[tuple[Namespace, str], list[str]] = {}
        for bundle, reason in maintenance.expired(self.bundles(), self._run.policy.maintenance, time.time()):
            going.setdefault((self._namespace(bundle), reason), []).append(bundle.bundle)
        for (where, reason), names in going.items():
            self._remove(where, names, reason)

    def scrub(self, bundles: Iterable[Bundle]) -> dict[str, str]:
        """Verify bundles and quarantine the damaged ones; return what is wrong with them."""
        damaged = {}
        for bundle in bundles:
            where = self._namespace(bundle)
            try:
                problem = merge.verify(self._run.bench, where, bundle.bundle, self._run.bundle_deadline())
            except WarmstartError as error:
                self._failed(error)
                continue
            self._count(verified=1)
            if problem:
                damaged[bundle.bundle] = problem
                self._quarantine(where, bundle.bundle, problem)
        return damaged

    def all(self) -> StoreReport:
        """Do all of it, of the scrub the part that is due today."""
        self._sweep_top()
        for where in self.namespaces():
            try:
                self.sweep(where)
                self.compact(where)
            except WarmstartError as error:
                self._failed(error)
        self.collect_garbage()
        self.scrub(bundle for bundle in self.bundles() if merge.is_due(bundle, maintenance.today()))
        self.evict_images()
        self.empty_quarantines()
        return self.report

    def evict_images(self) -> None:
        """Bring images below the policy's watermarks, and remove what dead producers left."""
        for store in self._image_stores():
            try:
                gone = store.make_room(0, self._run.policy.images, NOBODY, self._run.store_deadline())
            except WarmstartError as error:
                self._failed(error)
                continue
            for name in gone:
                self._run.audit.emit(events.IMAGE_EVICTED, name=name, reason="above images.keep.high")
            self._count(evicted=len(gone))

    def empty_quarantines(self) -> None:
        """Remove damaged images that nobody has looked at for long, or that are too many."""
        lease = self._run.policy.images.keep.lease
        for store in self._image_stores():
            try:
                gone = store.empty_quarantine(time.time(), lease, self._run.store_deadline())
            except WarmstartError as error:
                self._failed(error)
                continue
            for name in gone:
                self._run.audit.emit(events.IMAGE_DISCARDED, name=name, store=store.path)
            self._count(discarded=len(gone))

    def _image_stores(self) -> list[ImageStoreClient]:
        shared = ImageStoreClient(self._run.store.worker, self._store)
        return [shared.at(path) for path in shared.stores(self._run.store_deadline())]

    def _sweep_top(self) -> None:
        swept = self._run.store.sweep_top(time.time(), self._run.store_deadline())
        if swept:
            self._run.audit.emit(events.STORE_SWEPT, names=swept[:20])
        self._count(swept=len(swept))

    def _compact(self, where: Namespace, merger: Merger) -> None:
        run = self._run
        try:
            made = merge.compact(run.bench, where, merger, run.bundle_deadline())
        except BundleDamaged as error:
            self._quarantine(where, str(error.fields["bundle"]), str(error.fields["problem"]))
            return
        except PublishBlocked:  # whoever made it is blocked: it stays as it is
            return
        if made.bundle:
            entries = sum(map(len, merger.entries.values()))
            named = {"scope": where.scope, "profile": where.profile, "namespace": where.name}
            run.audit.emit(
                events.BUNDLE_COMPACTED, **named, bundle=made.bundle, replaces=merger.sources, entries=entries
            )
            self._count(compacted=1)

    def _remove(self, where: Namespace, names: list[str], reason: str) -> None:
        removed = self._run.store.remove(where, names, self._run.store_deadline()) if names else []
        for bundle in removed:
            self._tell(events.BUNDLE_REMOVED, where, bundle, reason)
        self._count(removed=len(removed))

    def _quarantine(self, where: Namespace, bundle: str, problem: str) -> None:
        if self._run.store.quarantine(where, bundle, self._run.store_deadline()):
            self._tell(events.BUNDLE_QUARANTINED, where, bundle, problem)
            self._count(quarantined=1)

    def _tell(self, event: events.Event, where: Namespace, bundle: str, reason: str) -> None:
        named = {"scope": where.scope, "profile": where.profile, "namespace": where.name}
        self._run.audit.emit(event, **named, bundle=bundle, reason=reason)

    def _failed(self, error: WarmstartError) -> None:
        self._run.failed(STEP, error)
        self._count(failed=1)

    def _namespace(self, bundle: Bundle) -> Namespace:
        return Namespace(self._store, bundle.scope, bundle.profile, bundle.namespace)

    def _count(self, **more: int) -> None:
        counts = self.report._asdict()
        self.report = StoreReport(**{name: count + more.get(name, 0) for name, count in counts.items()})
