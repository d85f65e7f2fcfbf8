"""Maintenance of the store on one host: sweep, compaction, garbage collection, checks (docs/operations/maintenance.md).

Root decides and audits; every access to the store runs as its owner (`StoreClient`). If a namespace fails, the error is
audited and the other namespaces are still done.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from itertools import groupby
from typing import NamedTuple, TypeVar

from warmstart import wing
from warmstart.audit import events
from warmstart.audit.line import Event
from warmstart.caches.store import bundles, ending, gc, layout, quota
from warmstart.caches.store.gc import Bundle, Merger, Out, What
from warmstart.caches.store.layout import Namespace
from warmstart.errors import WarmstartError
from warmstart.harvest.publish import tell_united
from warmstart.host.deadline import Deadline, after
from warmstart.images.store import eviction, published
from warmstart.images.store.client import ImageStoreClient
from warmstart.images.store.layout import NOBODY
from warmstart.maintenance import repack
from warmstart.profiles.contract import is_whole
from warmstart.seed.overlay import OverlayUnavailable
from warmstart.session import MaintenanceBusy, Session, store_deadline
from warmstart.store import reports
from warmstart.store.client import StoreClient

T = TypeVar("T")
R = TypeVar("R")

STORE_STEP = "store"  # in the audit
BUNDLE_SECONDS = 900.0  # for reading, packing and writing one bundle
CHECKS_SECONDS = 2 * 3600.0  # for reading the bundles that are due
FEWEST = 4  # bundles of one user in a namespace; fewer are not merged


class StoreReport(NamedTuple):
    """Counts of what maintenance did in the store."""

    united: int = 0  # runs of jobs on several nodes, of which not all have ended
    swept: int = 0  # files of publishers that died or that nobody is given, and empty namespaces
    compacted: int = 0  # new bundles, each merged from several
    removed: int = 0  # bundles, the damaged ones among them
    verified: int = 0  # bundles
    evicted: int = 0  # images
    failed: int = 0  # errors


def namespaces(store: StoreClient, failed: Callable[[WarmstartError], None]) -> Iterator[Namespace]:
    """Yield the store's namespaces, sorted. `failed` gets the error of each scope that is left out.

    A scope is listed when its turn comes, under a deadline of its own: a store may have tens of thousands of them.
    """
    scopes = store.run(store_deadline(), layout.scopes)
    yield from _listed(scopes, lambda scope: store.run(store_deadline(), layout.namespaces, scope), failed)


def survey(store: StoreClient, failed: Callable[[WarmstartError], None]) -> Iterator[Bundle]:
    """Yield the bundles that readers are given, scope by scope.

    Each namespace is read when its turn comes, under a deadline of its own, and not kept: a store may have a hundred
    thousand bundles. `failed` gets the error of each scope and namespace that is left out.
    """
    wheres = namespaces(store, failed)
    yield from _listed(wheres, lambda where: store.worker.run(store_deadline(), gc.survey, where), failed)


def _listed(things: Iterable[T], ask: Callable[[T], list[R]], failed: Callable[[WarmstartError], None]) -> Iterator[R]:
    for thing in things:
        try:
            found = ask(thing)
        except WarmstartError as error:
            failed(error)
        else:
            yield from found


def image_stores(session: Session) -> list[ImageStoreClient]:
    """Return the shared store of images and each private one."""
    shared = ImageStoreClient(session.store.worker, session.store.path)
    return [shared.at(path) for path in shared.run(session.store_deadline(), eviction.stores)]


def bundle_deadline() -> Deadline:
    """Return the deadline for working on one bundle."""
    return after(BUNDLE_SECONDS)


def labels(where: Namespace) -> dict[str, str]:
    """Return a namespace as the fields of an event."""
    return {"scope": where.scope, "profile": where.profile, "namespace": where.name}


@contextmanager
def locked(session: Session) -> Iterator[StoreMaintenance]:
    """Have the store's maintenance lock for a `with`. Raises `MaintenanceBusy` if another host holds it."""
    deadline = session.store_deadline()
    with session.store.worker.begin(deadline, gc.lock, session.store.path) as is_ours:
        if not is_ours(deadline):
            raise MaintenanceBusy(what="on the store, on this or another host")
        yield StoreMaintenance(session)


class StoreMaintenance:
    """Maintenance of the store, under the store's maintenance lock (`locked`)."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._failed = partial(session.failed, STORE_STEP)
        self._counts = Counter[str]()

    def namespaces(self) -> Iterator[Namespace]:
        """Yield the store's namespaces, without those of scopes that fail."""
        return namespaces(self._session.store, self._failed)

    def bundles(self) -> Iterator[Bundle]:
        """Yield the store's bundles scope by scope, without those of namespaces that fail."""
        return survey(self._session.store, self._failed)

    @property
    def report(self) -> StoreReport:
        """What was done so far."""
        return StoreReport(**self._counts, failed=len(self._session.failures))

    def all(self) -> StoreReport:
        """Run every part; check only the bundles that are due today."""
        session, store, now = self._session, self._session.store, time.time()
        with self.isolated():
            self._swept(None, store.run(session.store_deadline(), gc.sweep_top, now))
        self._each(store.run(session.store_deadline(), ending.due, now), self._unite)
        compacts = True
        for where in self.namespaces():
            with self.isolated():
                compacts = compacts and self.compact(where, FEWEST)
        self.collect_garbage()
        deadline = after(CHECKS_SECONDS)
        self.check(bundle for bundle in self.bundles() if not deadline.expired() and gc.is_due(bundle, now))
        self._each(self.namespaces(), self.sweep)
        self._each(
            store.run(session.store_deadline(), layout.scopes),
            lambda scope: store.run(session.store_deadline(), quota.correct, scope),
        )
        self.maintain_images()
        with self.isolated():
            self._remove_reports()
        self._each(wing.with_part("store_maintenance"), lambda module: wing.load(module).maintain(session))
        store.run(session.store_deadline(), gc.record_maintained)
        return self.report

    def isolated(self) -> AbstractContextManager[None]:
        """Audit and count what a `with` block raises, so that the next part is done."""
        return self._session.isolated("the store", STORE_STEP)

    def _each(self, things: Iterable[T], act: Callable[[T], object]) -> None:
        """Do something for each thing, also after one for which it fails."""
        for thing in things:
            with self.isolated():
                act(thing)

    def _unite(self, run: str) -> None:
        """Publish what nodes of a run have ready of which not all have ended."""
        session = self._session
        united = session.store.run(bundle_deadline(), ending.unite, session.store.writer, run, time.time())
        tell_united(session.audit, run, united)
        self._counts["united"] += 1

    def compact(self, where: Namespace, fewest: int) -> bool:
        """Make one bundle of several of a user's; return whether this host can."""
        session = self._session
        if is_whole(where.profile):
            return True
        for merger in session.store.worker.run(session.store_deadline(), gc.plan, where, fewest):
            try:
                self._compact(where, merger)
            except OverlayUnavailable as error:
                self._failed(error)
                return False
            except WarmstartError as error:  # the bundles of other users are still merged
                self._failed(error)
        return True

    def _compact(self, where: Namespace, merger: Merger) -> None:
        made = repack.compact(self._session, where, merger, bundle_deadline())
        if made.sha256:
            names, replaces = sum(map(len, merger.names)), [row.sha256 for row in merger.rows]
            about = {**labels(where), "bundle": made.sha256, "replaces": replaces, "entries": names}
            self._session.audit.emit(events.BUNDLE_COMPACTED, **about)
            self._counts["compacted"] += 1

    def collect_garbage(self) -> None:
        """Remove the bundles that the policy's `maintenance` section lets expire; one scope after the other."""
        for _, of_scope in groupby(self.bundles(), lambda bundle: bundle.scope):
            going: dict[tuple[Namespace, str], list[str]] = {}
            for bundle, reason in gc.expired(of_scope, self._session.policy.maintenance, time.time()).items():
                going.setdefault((bundle.where(self._session.store.path), reason), []).append(bundle.bundle)
            for (where, reason), names in going.items():
                with self.isolated():
                    self.remove(where, reason, What(names))

    def check(self, found: Iterable[Bundle]) -> dict[str, str]:
        """Read bundles, and take the damaged ones out of their listings; return their problems by hash."""
        damaged = {}
        for bundle in found:
            where = bundle.where(self._session.store.path)
            with self.isolated():
                problem = self._session.store.worker.run(
                    bundle_deadline(), gc.damage, where, bundle.bundle, bundle.size
                )
                self._counts["verified"] += 1
                if problem:
                    damaged[bundle.bundle] = problem
                    self.remove(where, problem, What([bundle.bundle]), events.BUNDLE_DAMAGED)
        return damaged

    def remove(self, where: Namespace, reason: str, what: What, event: Event = events.BUNDLE_REMOVED) -> Out:
        """Take bundles and entries from readers, whoever uses them: a node that has a copy keeps it until it is pruned.

        What was covered by them does not come back.
        """
        session = self._session
        out = session.store.worker.run(session.store_deadline(), gc.take_out, where, session.store.writer, what)
        for row in out.rows:
            session.audit.emit(event, **labels(where), bundle=row.sha256, user=row.user, reason=reason)
        if out.entries:
            about = {"entries": what.entries[:20], "number": out.entries}
            session.audit.emit(events.ENTRIES_REMOVED, **labels(where), **about, reason=reason)
        self._counts["removed"] += len(out.rows)
        return out

    def sweep(self, where: Namespace) -> None:
        """Remove what no generation of a listing names, and a namespace that nobody has published into for a day."""
        session, now = self._session, time.time()
        if names := session.store.worker.run(session.store_deadline(), bundles.sweep, where, now):
            self._swept(where, names)
        before = (now - gc.DAY, now - session.policy.maintenance.keep)
        if session.store.worker.run(session.store_deadline(), bundles.remove_empty, where, *before):
            self._swept(where, [where.profile])

    def _swept(self, where: Namespace | None, names: list[str]) -> None:
        if names:
            of = {"scope": where.scope, "namespace": where.name} if where else {}
            self._session.audit.emit(events.STORE_SWEPT, **of, names=names[:20])
        self._counts["swept"] += len(names)

    def maintain_images(self) -> None:
        """Do what is to be done in the shared store of images and in each private one."""
        stores = image_stores(self._session)
        self._each(stores, self._evict_images)
        self._each(stores, self._record_images)

    def _evict_images(self, store: ImageStoreClient) -> None:
        """Evict images down to the policy's watermarks, and remove files of producers that died."""
        rules, deadline = self._session.policy.images, self._session.store_deadline()
        gone = store.run(deadline, eviction.make_room, 0, rules.keep, NOBODY)
        for name in gone:
            self._session.audit.emit(events.IMAGE_EVICTED, name=name, reason="above images.keep.high")
        self._counts["evicted"] += len(gone)

    def _record_images(self, store: ImageStoreClient) -> None:
        """Write down the hashes of images whose producers died before they did."""
        # A damaged one is found, and replaced, by the next job that wants it.
        self._each(
            store.run(self._session.store_deadline(), published.unrecorded),
            lambda name: store.run(bundle_deadline(), published.check_bytes, name, "maintenance"),
        )

    def _remove_reports(self) -> None:
        """Remove reports for jobs' users that are too old; all of them where none are written."""
        session = self._session
        before = time.time() - (session.policy.maintenance.reports or 0)
        self._counts["swept"] += session.store.run(session.store_deadline(), reports.remove_before, before)
