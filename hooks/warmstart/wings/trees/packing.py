"""Pack a tree into a squashfs of root's, and publish it (docs/adr/index.md, 48). Runs as root, for no job.

A packed tree is a whole (`profiles.contract`), whose namespace names the tree and what it looked like (`current`). So
a tree that changes has another namespace, and the old copy goes when nobody has used it for long. Its one entry stands
for the whole: a manifest could not name the files of a large tree, and nobody takes a part of one.

The copy of a tree that a rule names for an account or the site belongs to root and to the group of the tree's top, and
who owns that is its producer: it is this account's code, whoever asked for it (docs/adr/index.md, 50).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from warmstart.audit.log import Log
from warmstart.caches.store import bundles, quota
from warmstart.caches.store import client as caches
from warmstart.caches.store.bundles import Draft, Published
from warmstart.caches.store.gc import IN_USE_SECONDS, OVER
from warmstart.caches.store.layout import File, Namespace
from warmstart.caches.store.quota import QuotaExceeded
from warmstart.harvest.pack import pack
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import create_file, ensure_dir, opened_dir, unlink_if_there
from warmstart.host.identity import Identity
from warmstart.host.remove import remove_tree
from warmstart.paths import NodePaths
from warmstart.policy.keys import Policy
from warmstart.policy.shared import covering
from warmstart.store.client import StoreClient
from warmstart.store.layout import is_user_scope
from warmstart.wings.trees import copies
from warmstart.wings.trees.client import TreeClient
from warmstart.wings.trees.current import Look, TreeUnusable
from warmstart.wings.trees.offered import RENEWED_S, TREE_S, directory, offered
from warmstart.wings.trees.place import ENTRY, LEFT_OUT, facts_of, place_of
from warmstart.wings.trees.requests import TreeRequest
from warmstart.wings.trees.stage import Stage, Staged
from warmstart.wings.trees.walk import Bounds, TreeRefused

T = TypeVar("T")

LOOK_S = 30.0
STORE_S = 60.0
QUIET_S = 10.0  # what changed less ago than this may change again within one tick of the file system's clock
REMOVAL_S = 300.0
MOST_FILES = 1_000_000  # files and directories of one tree
_STAGE, _PACKED, _TREE = "stage", "packed.sqsh", "tree"


class Packed(NamedTuple):
    """A tree that was packed and published."""

    look: Look
    staged: Staged
    published: Published


def pack_tree(request: TreeRequest, paths: NodePaths, policy: Policy, store: StoreClient, audit: Log) -> Packed | None:
    """Pack a tree as it is now; None if there is nothing to do: it is published, or another node packs it.

    Where the scope's quota needs the room, copies of trees go that nobody has used for long. Only one process of a node
    may do this at a time. Raises `TreeUnusable`, `TreeRefused`, `QuotaExceeded`, `DiskFailed`, other errors of the
    store and of programs, and `OSError`.
    """
    deadline = after(TREE_S)
    user = Identity(request.user, request.uid, request.gid)
    clear(paths)
    records = os.open(directory(paths), os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        work = _Pack(request, paths, policy, store, TreeClient(user, request.tree, records), audit)
        seen = work.look(deadline)
        where = place_of(store.path, request.scope, facts_of(seen, request.shared))
        with caches.locked_namespace(store, where, deadline.within(STORE_S)) as is_ours:
            if not is_ours or work.is_published(where, deadline.within(STORE_S)):
                return None
            time.sleep(min(max(seen.changed + QUIET_S - time.time(), 0.0), QUIET_S))
            return work.publish(seen, deadline)
    finally:
        os.close(records)
        clear(paths)


def clear(paths: NodePaths) -> None:
    """Remove what a process that died has left of its work. Raises `OSError`."""
    for path in (paths.work, directory(paths)):
        ensure_dir(path, 0o700)
    with opened_dir(directory(paths)) as fd:
        remove_tree(fd, _STAGE, after(REMOVAL_S))
        unlink_if_there(_PACKED, fd)


class _Pack(NamedTuple):
    request: TreeRequest
    paths: NodePaths
    policy: Policy
    store: StoreClient
    client: TreeClient
    audit: Log

    def look(self, deadline: Deadline) -> Look:
        """Return the tree as it is now."""
        request = self.request
        shared = (request.shared,) if request.shared else ()
        seen = self.client.look(offered(self.policy).prefixes, request.marker, deadline.within(LOOK_S), shared)
        if not (covering(seen.path, shared) if shared else is_user_scope(request.scope)):
            raise TreeUnusable(tree=request.tree, problem=f"it leads to {seen.path}, which no rule names any more")
        return seen

    def publish(self, seen: Look, deadline: Deadline) -> Packed:
        """Copy, pack and publish the tree."""
        request, rules = self.request, offered(self.policy)
        with opened_dir(directory(self.paths)) as fd:
            os.mkdir(_STAGE, 0o700, dir_fd=fd)
            with opened_dir(_STAGE, fd) as top:
                os.mkdir(_TREE, 0o755, dir_fd=top)
                squashfs, staged = self._pack(seen, top, Bounds(rules.max_size, MOST_FILES), deadline)
        try:
            if self.look(deadline)[:2] != seen[:2]:
                raise TreeUnusable(tree=request.tree, problem="it changed while it was packed")
            facts = facts_of(seen, request.shared)
            where = place_of(self.store.path, request.scope, facts)
            user, uid = request.user, request.uid
            if request.shared:
                user, uid = next(owner for owner in request.shared.owners if owner.uid == seen.owner)
            whole = {ENTRY: {ENTRY: File(staged.size, seen.stamp, 0)}}
            draft, most = Draft(user, uid, request.job_id, whole, facts=facts, fresh=True), self._quota
            for copy in copies.copies_of(self.store, where):
                copies.take_out(self.store, self.audit, copy, "packed anew")
            published = self._within_quota(
                lambda: caches.publish(self.store, where, squashfs, draft, deadline, quota=most)
            )
            return Packed(seen, staged, published)
        finally:
            os.close(squashfs)

    def is_published(self, where: Namespace, deadline: Deadline) -> bool:
        """Return whether there is a copy that is not old; raises `QuotaExceeded` if there is no room for one."""
        user, uid = self.request.user, self.request.uid
        self._within_quota(
            lambda: self.store.worker.run(deadline, bundles.known, where, user, uid, self._quota, fresh=False)
        )
        return any(copy.packed >= time.time() - RENEWED_S for copy in copies.copies_of(self.store, where))

    @property
    def _quota(self) -> int:
        return quota.quota(self.request.scope, self.policy.maintenance)

    def _within_quota(self, act: Callable[[], T]) -> T:
        """Run what a scope's quota may refuse, again if there could be made room."""
        try:
            return act()
        except QuotaExceeded as error:
            if not self._made_room(error):
                raise
            return act()

    def _made_room(self, error: QuotaExceeded) -> bool:
        """Take the least recently used copies of the scope out of use that no job reads; return whether that is enough.

        Maintenance does so once a day, and only where nine tenths of a quota are used: a tree may be larger than that.
        """
        used, more, most = (int(str(error.fields[name])) for name in ("used", "more", "quota"))
        known = copies.copies_in(self.store, self.request.scope, lambda _: None)
        idle = [copy for copy in known if copy.used < time.time() - IN_USE_SECONDS]
        if used + more - sum(copy.size for copy in idle) > most:
            return False
        for copy in sorted(idle, key=lambda copy: copy.used):
            if used + more <= most:
                break
            copies.take_out(self.store, self.audit, copy, OVER)
            used -= copy.size
        self.store.run(after(STORE_S), quota.correct, self.request.scope)
        return True

    def _pack(self, seen: Look, top: int, bounds: Bounds, deadline: Deadline) -> tuple[int, Staged]:
        """Return a descriptor of the squashfs, and what it has."""
        request = self.request
        with opened_dir(_TREE, top) as fd, Stage(fd, request.tree, bounds) as stage:
            owners = request.shared.uids if request.shared else None
            self.client.walk(seen.path, bounds, stage, deadline, owners)
            staged = stage.result()
            if staged.left_out:
                lines = [f"{staged.left_out}", *(f"{path}: {reason}" for path, reason in staged.examples)]
                os.close(create_file(top, LEFT_OUT, "".join(f"{line}\n" for line in lines).encode(), 0o444))
            path = f"{directory(self.paths)}/{_PACKED}"
            own = (0, seen.group) if request.shared else (request.uid, request.gid)
            packed = pack(f"{directory(self.paths)}/{_STAGE}", path, deadline, stage.space.while_written(path), own)
            size, keep = os.fstat(packed).st_size, offered(self.policy).keep
            if size > keep:
                os.close(packed)
                problem = f"its copy has {size} bytes, and nodes keep {keep} of all trees"
                raise TreeRefused(tree=request.tree, problem=problem)
            return packed, staged
