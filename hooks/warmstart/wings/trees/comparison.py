"""Compare the copies of trees that a node has with the trees, and take out of use what is no copy any more.

Runs as root, for no job; a process with the rights of the copy's user looks (`trees.differences`). Only a node that has
a copy compares it: there both sides can be seen without a fetch, and jobs have read the tree. One node of a store does
so at a time. The store keeps when a namespace was last compared, so that a copy that a thousand nodes have is compared
once in `trees.compare`. Whoever dies while comparing has changed nothing.
"""

from __future__ import annotations

import os
import pwd
import time
from typing import NamedTuple

from warmstart.audit.journal import Journal
from warmstart.host.deadline import after
from warmstart.host.files import DIRECTORY
from warmstart.host.identity import Identity
from warmstart.paths import NodePaths
from warmstart.policy.compiled import Policy
from warmstart.seed import node_cache
from warmstart.store import maintenance
from warmstart.store.client import StoreClient
from warmstart.store.layout import Namespace, is_user_scope
from warmstart.wings.trees import copies, events
from warmstart.wings.trees.client import TreeClient
from warmstart.wings.trees.copies import TreeCopy
from warmstart.wings.trees.current import TreeUnusable
from warmstart.wings.trees.differences import Differences
from warmstart.wings.trees.offered import PROFILE, TREE_S, offered
from warmstart.wings.trees.place import ENTRY

LOOK_S = 30.0
MOUNTING_S = 5.0
STORE_S = 60.0
CHANGED = "the tree has changed"
_MARK = "compared"  # of a namespace: when its copies were last compared with their tree


class Here(NamedTuple):
    """A copy that this node has on its disk."""

    path: str  # of its squashfs
    where: Namespace
    bundle: str


def here(paths: NodePaths, store: str) -> list[Here]:
    """Return the copies of trees that a node has."""
    return [
        Here(path, Namespace(store, use.scope, PROFILE, use.namespace), use.bundle)
        for path, use in node_cache.placed(paths.bundles)
        if use.profile == PROFILE
    ]


def due(paths: NodePaths, store: StoreClient, interval: int) -> list[Here]:
    """Return the copies of this node that no node has compared for so many seconds, longest ago first."""
    found = here(paths, store.path)
    compared = store.worker.run(after(STORE_S), maintenance.marked, [item.where for item in found], _MARK)
    before = time.time() - interval
    return [item for at, item in sorted(zip(compared, found, strict=True)) if at < before]


def compare(item: Here, paths: NodePaths, policy: Policy, store: StoreClient, audit: Journal) -> None:
    """Compare one copy with its tree, and take it out of use if they differ; the audit says what is another.

    A tree that its user cannot see now, or of which the markers have changed, is left alone: no job gets this copy.
    Raises `WorkerSilent` where the file system hangs, other `WarmstartError`s, and `OSError`; it is compared again when
    it is due.
    """
    started = time.monotonic()
    copy = next((copy for copy in copies.copies_of(store, item.where) if copy.bundle == item.bundle), None)
    user = _user(copy, policy) if copy else None
    try:
        found = copy and user and _differences(item, copy, user, paths, policy)
    except TreeUnusable:
        found = None
    finally:
        store.run_in(after(STORE_S), maintenance.mark, item.where, _MARK)
    if not (copy and found):
        return
    audit = audit.for_job(uid=copy.uid, user=copy.user)
    if found.changed:
        copies.take_out(store, audit, copy, CHANGED)
    audit.emit(
        events.TREE_COMPARED,
        tree=copy.tree,
        scope=copy.scope,
        bundle=copy.bundle,
        names=found.names,
        changed=found.changed,
        examples=found.examples,
        duration_ms=round((time.monotonic() - started) * 1000, 3),
    )


def _user(copy: TreeCopy, policy: Policy) -> Identity | None:
    """Return whose rights to use; None if this node does not know the user, or the manifest claims another's."""
    try:
        known = pwd.getpwnam(copy.user)
    except KeyError:
        return None
    if is_user_scope(copy.scope):
        is_served = copy.scope.startswith(f"user-{copy.uid}-") and copy.uid >= policy.limits.min_uid
    else:
        is_served = copy.uid > 0  # the account that owns what many share, never root
    return Identity(copy.user, known.pw_uid, known.pw_gid) if is_served and known.pw_uid == copy.uid else None


def _differences(item: Here, copy: TreeCopy, user: Identity, paths: NodePaths, policy: Policy) -> Differences | None:
    """Return how a tree differs from its copy; None if the markers say so, before or after."""
    rules = offered(policy)
    (root,) = node_cache.mounted(paths.layers, [item.path], after(MOUNTING_S))
    try:
        top = os.open(ENTRY, DIRECTORY, dir_fd=root)
    finally:
        os.close(root)
    try:
        with TreeClient(user, copy.tree, top) as client:
            before = client.look(rules.prefixes, copy.marker, after(LOOK_S))
            if (before.path, before.stamp) != (copy.tree, copy.stamp):
                return None
            found = client.compare(before.path, rules.max_files, after(TREE_S))
            now = client.look(rules.prefixes, copy.marker, after(LOOK_S))
            return found if now.stamp == copy.stamp else None
    finally:
        os.close(top)
