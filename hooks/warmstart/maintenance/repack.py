"""Make one bundle of several, or of a part of one: compaction and promotion. Runs as root.

The bundles are fetched, which hashes every byte, and mounted below an overlay as for a job (`seed.overlay`), with
whiteouts on what is not wanted. Root reads no file in them: mksquashfs packs what the overlay shows, inode by inode, as
it packs a harvest. Which entries there are with which files was said by who made the bundles, and is handed on.

Compaction puts the new bundle in the place of those that it was made of, if these are as they were.
A process that dies leaves the old rows, or the new one. The old files stay for who has read the listing before.

Promotion publishes entries of a bundle in a more trusted scope at an administrator's command. Their user stays.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from warmstart.caches.store import bundles, client, generations
from warmstart.caches.store.bundles import Draft, Published
from warmstart.caches.store.gc import Bundle, Merger
from warmstart.caches.store.layout import MOST_BYTES, Entries, Namespace
from warmstart.caches.store.listing import Row
from warmstart.caches.store.quota import quota
from warmstart.errors import UserError
from warmstart.harvest.pack import pack
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import closing, disk_errors, ensure_dir, opened_dir
from warmstart.host.identity import ROOT
from warmstart.host.remove import remove_tree
from warmstart.host.space import Reservation
from warmstart.profiles import registry
from warmstart.profiles.contract import is_whole
from warmstart.seed import copies, layers, node_cache, overlay
from warmstart.session import Session
from warmstart.store.client import StoreClient

_TRUST = {"user": 0, "account": 1, "site": 2}
_STAGE, _VIEW = "bundles", "view"  # one process at a time, by the store's maintenance lock; leftovers are removed first
_REMOVAL_S = 60.0


class PromotionRefused(UserError):
    """The target scope is not more trusted, the entries stay with their user, or the bundle does not have them."""

    code = "promotion-refused"
    template = "{problem}"
    hint = "run `warmstart cache list` for the scopes, `warmstart cache show BUNDLE` for its entries"


def compact(session: Session, where: Namespace, merger: Merger, deadline: Deadline) -> Published:
    """Make one bundle of several; `sha256` of the result is "" if their rows have changed meanwhile.

    Bundles stay out whose files do not fit into one directory with those of the others. Raises `BundleDamaged`,
    `BundleGone`, `OverlayUnavailable`, `DiskFailed`, and the errors of the store and of `pack`.
    """
    with _packed(session, where, merger, deadline) as (fd, rows, entries):
        if len(rows) < 2:
            return Published()
        draft = _draft(rows[0], entries)._replace(at=min(row.at for row in rows))
        return client.publish(session.store, where, fd, draft, deadline, before=rows)


def promote(session: Session, found: Bundle, names: Collection[str], scope: str, deadline: Deadline) -> Published:
    """Publish entries of a bundle (default: all that readers take of it) in a more trusted scope that lacks them.

    Raises `PromotionRefused`, else errors as `compact`, and `QuotaExceeded`.
    """
    where = found.where(session.store.path)
    target, most = where._replace(scope=scope), quota(scope, session.policy.maintenance)
    require_promotable(where, scope)
    (row, known), *_ = [it for it in _listed(session, where, deadline) if it[0].sha256 == found.bundle]
    if missing := sorted({*names} - {*known}):
        raise PromotionRefused(problem=f"bundle {row.sha256} provides no entry {missing[0]!a}")
    there = {entry for _, provided in _listed(session, target, deadline) for entry in provided}
    if not (wanted := [entry for entry in names or known if entry not in there]):
        return Published()
    with _packed(session, where, Merger([row], [wanted]), deadline) as (fd, _, entries):
        draft = _draft(row, entries)._replace(facts=session.store.worker.run(deadline, bundles.facts, where))
        return client.publish(session.store, target, fd, draft, deadline, quota=most)


def _listed(session: Session, where: Namespace, deadline: Deadline) -> list[tuple[Row, list[str]]]:
    listing = session.store.worker.run(deadline, generations.read, where)
    return [*zip(listing.rows, listing.names, strict=True)]


def require_promotable(where: Namespace, scope: str) -> None:
    """Raise `PromotionRefused` if nothing of a namespace may be promoted to a scope."""
    if _trust(where.scope) >= _trust(scope):
        raise PromotionRefused(problem=f"{scope} is not more trusted than {where.scope}")
    if registry.is_of_user(where.profile) or is_whole(where.profile):
        raise PromotionRefused(problem=f"entries of {where.profile} stay in their scope")


def _trust(scope: str) -> int:
    kind, _, rest = scope.partition("-")
    if kind not in _TRUST or (kind == "site") == bool(rest):
        raise PromotionRefused(problem=f"{scope!a} is not a scope: user-UID-NAME, account-NAME or site")
    return _TRUST[kind]


@contextmanager
def _packed(
    session: Session, where: Namespace, parts: Merger, deadline: Deadline
) -> Iterator[tuple[int, list[Row], Entries]]:
    """Yield, for a `with`, a bundle of parts of others: its descriptor, of which rows it is, and its entries."""
    stage = session.paths.maintenance
    with disk_errors(stage):
        ensure_dir(stage, 0o700)
        with opened_dir(stage) as parent:
            remove_tree(parent, _STAGE, after(_REMOVAL_S))  # what is mounted there is detached
            os.mkdir(_STAGE, 0o700, dir_fd=parent)
            try:
                yield from _pack_in(f"{stage}/{_STAGE}", session.store, where, parts, deadline)
            finally:
                remove_tree(parent, _STAGE, after(_REMOVAL_S))


def _pack_in(
    stage: str, store: StoreClient, where: Namespace, parts: Merger, deadline: Deadline
) -> Iterator[tuple[int, list[Row], Entries]]:
    bundles = f"{stage}/bundles"
    for row in parts.rows:
        node_cache.get(bundles, where, row, store=store, most_bytes=MOST_BYTES, deadline=deadline)
    files = [copies.entries_of(bundles, row.sha256) for row in parts.rows]
    shown = layers.visible(files, parts.names).entries
    # Jobs choose names, so a name may be a file in one bundle and a directory in another: both stay out.
    taken = [number for number, names in enumerate(parts.names) if len(shown[number]) == len(names)]
    rows, names = [parts.rows[number] for number in taken], [parts.names[number] for number in taken]
    files = [files[number] for number in taken]
    if not rows:
        yield -1, [], {}
        return
    view, out = f"{stage}/cache/{_VIEW}", f"{stage}/bundle.sqsh"
    with opened_dir(stage) as top, Reservation(top) as space, overlay.job_ids(ROOT) as root:
        os.makedirs(view, mode=0o700)
        paths = [copies.path_of(bundles, row.sha256) for row in rows]
        roots = node_cache.mounted(f"{stage}/layers", paths, deadline)
        try:
            overlay.show(top, _VIEW, roots, layers.visible(files, names).hidden, root)
        finally:
            for fd in roots:
                os.close(fd)
        space.hold(sum(row.size for row in rows))
        with closing(pack(view, out, deadline, space.while_written(out))) as squashfs:
            yield squashfs, rows, {name: of[name] for of, some in zip(files, names, strict=True) for name in some}


def _draft(row: Row, entries: Entries) -> Draft:
    return Draft(row.user, row.uid, row.job, entries)
