"""Packed copies of trees in the store: what there is, and how one is taken out of use. Runs as root, for no job."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from warmstart.audit import events
from warmstart.audit.log import Log
from warmstart.caches.store import bundles, gc, layout
from warmstart.caches.store.gc import What
from warmstart.caches.store.layout import Namespace
from warmstart.errors import WarmstartError
from warmstart.host.deadline import Deadline, after
from warmstart.profiles.contract import OWNERS
from warmstart.store.client import StoreClient
from warmstart.wings.trees.offered import PROFILE

STORE_S = 60.0  # for one operation on the store


class TreeCopy(NamedTuple):
    """A packed copy that readers see."""

    tree: str  # its path, without links
    marker: str  # the file that the job named, "" if none
    stamp: str  # `current.Look`
    scope: str
    namespace: str
    bundle: str  # its SHA-256
    user: str  # whose job asked for it, or who owns the tree if many share it
    uid: int
    packed: float  # seconds since the epoch
    used: float  # the same, exact to an hour
    size: int  # of the packed copy, bytes
    owners: str  # uids whose files it may have, if many share it; "" for a user's own


def copies(store: StoreClient, failed: Callable[[WarmstartError], None]) -> Iterator[TreeCopy]:
    """Yield the store's copies, scope by scope. `failed` gets the error of each scope and namespace that is left out.

    Each operation has a deadline of its own.
    """
    for scope in store.run(_deadline(), layout.scopes):
        try:
            yield from copies_in(store, scope, failed)
        except WarmstartError as error:
            failed(error)


def copies_in(store: StoreClient, scope: str, failed: Callable[[WarmstartError], None]) -> Iterator[TreeCopy]:
    """Yield the copies of a scope. `failed` gets the error of each namespace that is left out."""
    for where in store.run(_deadline(), layout.namespaces, scope):
        if where.profile == PROFILE:
            try:
                yield from copies_of(store, where)
            except WarmstartError as error:
                failed(error)


def copies_of(store: StoreClient, where: Namespace) -> list[TreeCopy]:
    """Return the copy of one namespace, if there is one."""
    if not (found := store.worker.run(_deadline(), gc.survey, where)):
        return []
    facts = store.worker.run(_deadline(), bundles.facts, where)
    return [
        TreeCopy(
            facts.get("path", ""),
            facts.get("marker", ""),
            facts.get("stamp", ""),
            where.scope,
            where.name,
            bundle.bundle,
            bundle.user,
            bundle.uid,
            packed=bundle.at,
            used=bundle.used,
            size=bundle.size,
            owners=facts.get(OWNERS, ""),
        )
        for bundle in found
    ]


def take_out(store: StoreClient, audit: Log, copy: TreeCopy, reason: str) -> None:
    """Take a copy out of use, unless it is gone already: no job that begins from now on sees it.

    Jobs that have it keep it: their node has the bytes as long as it is mounted there. Whoever asks for the tree next
    has it packed anew.
    """
    where = Namespace(store.path, copy.scope, PROFILE, copy.namespace)
    if store.worker.run(_deadline(), gc.take_out, where, store.writer, What([copy.bundle])).rows:
        about = {"profile": PROFILE, "namespace": copy.namespace, "scope": copy.scope, "bundle": copy.bundle}
        audit.emit(events.BUNDLE_REMOVED, **about, tree=copy.tree, reason=reason)


def _deadline() -> Deadline:
    return after(STORE_S)
