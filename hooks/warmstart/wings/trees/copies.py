"""Packed copies of trees in the store: what there is, and how one is taken out of use. Runs as root, for no job."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from warmstart.audit import events
from warmstart.audit.log import Log
from warmstart.errors import WarmstartError
from warmstart.host.deadline import Deadline, after
from warmstart.profiles.contract import OWNERS
from warmstart.store import maintenance
from warmstart.store.client import StoreClient
from warmstart.store.layout import Namespace
from warmstart.wings.trees.offered import PROFILE
from warmstart.wings.trees.place import ENTRY

STORE_S = 60.0  # for one operation on the store
_FILES, _LEFT_OUT, _EXAMPLES = "files", "left_out", "left_out_examples"  # facts of a copy, beside its namespace's


class TreeCopy(NamedTuple):
    """A packed copy that readers see."""

    tree: str  # its path, without links
    marker: str  # the file that the job named, "" if none
    stamp: str  # `current.Look`
    scope: str
    namespace: str
    bundle: str
    user: str  # whose job asked for it, or who owns the tree if many share it
    uid: int
    node: str  # that packed it
    packed: float  # seconds since the epoch
    used: float  # the same, exact to a day
    files: int  # names
    bytes: int  # of the tree's files
    size: int  # of the packed copy, bytes
    left_out: int
    examples: str  # paths that were left out, and why
    owners: str  # uids whose files it may have, if many share it; "" for a user's own


def told_of(files: int, left_out: int, examples: Sequence[tuple[str, str]]) -> dict[str, str]:
    """Return what the manifest of a copy says of it beside the facts of its namespace."""
    told = {_FILES: str(files)}
    if left_out:
        told |= {_LEFT_OUT: str(left_out), _EXAMPLES: "; ".join(f"{path}: {reason}" for path, reason in examples)}
    return told


def copies(store: StoreClient, failed: Callable[[WarmstartError], None]) -> Iterator[TreeCopy]:
    """Yield the store's copies, scope by scope. `failed` gets the error of each scope and namespace that is left out.

    Each operation has a deadline of its own.
    """
    for scope in store.run(_deadline(), maintenance.scopes):
        try:
            yield from copies_in(store, scope, failed)
        except WarmstartError as error:
            failed(error)


def copies_in(store: StoreClient, scope: str, failed: Callable[[WarmstartError], None]) -> Iterator[TreeCopy]:
    """Yield the copies of a scope. `failed` gets the error of each namespace that is left out."""
    for where in store.run(_deadline(), maintenance.namespaces, scope):
        if where.profile == PROFILE:
            try:
                yield from copies_of(store, where)
            except WarmstartError as error:
                failed(error)


def copies_of(store: StoreClient, where: Namespace) -> Iterator[TreeCopy]:
    """Yield the copies of one namespace."""
    for bundle in store.survey(where, _deadline()):
        manifest = store.manifest(where, bundle.bundle, _deadline())
        facts, producer = manifest.facts, manifest.producer
        whole = manifest.entries.get(ENTRY, {}).get(ENTRY)
        yield TreeCopy(
            facts.get("path", ""),
            facts.get("marker", ""),
            facts.get("stamp", ""),
            where.scope,
            where.name,
            bundle.bundle,
            producer.user,
            producer.uid,
            producer.node,
            packed=manifest.created,
            used=bundle.used,
            files=_number(facts, _FILES),
            bytes=whole.size if whole else 0,
            size=bundle.size,
            left_out=_number(facts, _LEFT_OUT),
            examples=facts.get(_EXAMPLES, ""),
            owners=facts.get(OWNERS, ""),
        )


def take_out(store: StoreClient, audit: Log, copy: TreeCopy, reason: str) -> None:
    """Take a copy out of use, unless it is gone already: no job that begins from now on sees it.

    Jobs that have it keep it: their node has the bytes as long as it is mounted there. Whoever asks for the tree next
    has it packed anew.
    """
    where = Namespace(store.path, copy.scope, PROFILE, copy.namespace)
    if store.run_in(_deadline(), maintenance.remove, where, [copy.bundle]):
        about = {"profile": PROFILE, "namespace": copy.namespace, "scope": copy.scope, "bundle": copy.bundle}
        audit.emit(events.BUNDLE_REMOVED, **about, tree=copy.tree, reason=reason)


def _number(facts: dict[str, str], name: str) -> int:
    text = facts.get(name, "")
    return int(text) if text.isdecimal() else 0


def _deadline() -> Deadline:
    return after(STORE_S)
