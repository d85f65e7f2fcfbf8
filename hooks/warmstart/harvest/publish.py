"""What a harvest asks of the store, and gives it: a bundle for readers, of a job on several nodes by way of its end.

All of it may be done twice: what is published is known, and left out. A job that has built nothing asks nothing, so
that what is asked is imported only then.
"""

from __future__ import annotations

from warmstart.audit import events
from warmstart.audit.log import Log
from warmstart.caches.store.layout import Entries, Namespace
from warmstart.errors import StoreError
from warmstart.host.deadline import Deadline, after, looks
from warmstart.lean import TYPE_CHECKING, Iterable, NamedTuple, suppress
from warmstart.paths import NodePaths
from warmstart.run.state import Caches, Run, SeededBundle
from warmstart.slurm.nodes import expand, first
from warmstart.store.client import StoreClient

if TYPE_CHECKING:
    from warmstart.caches.store import ending
    from warmstart.caches.store.bundles import Draft
    from warmstart.caches.store.ending import United

STORE_SECONDS = 5.0  # for one question
HEAD_SECONDS = 20.0  # for the first node to end before the others: mostly all make the same
UNION_SECONDS = 60.0  # for listing what all nodes have handed in


class Target(NamedTuple):
    """Where one profile's harvest goes, and whose it is."""

    store: StoreClient
    run: Run
    caches: Caches
    where: Namespace
    quota: int  # bytes; 0: none


def known(target: Target, deadline: Deadline) -> list[str]:
    """Return the entries that the store has. Raises `StoreFailed` and `WorkerSilent`.

    Of a job on several nodes with those that the first one has handed in, for which the others wait a moment, and with
    this node's own of an attempt before.
    """
    from warmstart.caches.store import bundles, ending

    store, run, caches, where, quota = target
    place, head = _place(store, run), first(caches.nodes or run.nodelist)
    if place and head != run.node:
        for _ in looks(deadline.within(min(HEAD_SECONDS, deadline.left() / 2))):
            if store.worker.run(after(STORE_SECONDS), ending.has_ended, place, head):
                break
    answer_by = deadline.within(STORE_SECONDS)
    found = store.worker.run(answer_by, bundles.known, where, run.user, run.uid, quota, run.fresh)
    if place:
        found += store.worker.run(answer_by, ending.handed, place, where, [head, run.node])
    return found


def entries_of(target: Target, paths: NodePaths, deadline: Deadline, bundle: SeededBundle) -> Entries:
    """Return the entries of a bundle with their files, by the node's copy, else by the store; none if it is gone."""
    from warmstart.caches.store import bundles
    from warmstart.seed import copies

    with suppress(OSError, ValueError):
        return copies.entries_of(paths.bundles, bundle.sha256)
    with suppress(StoreError):
        there = target.where._replace(scope=bundle.scope)
        return target.store.worker.run(deadline.within(STORE_SECONDS), bundles.entries, there, bundle.sha256)
    return {}


def publish(target: Target, squashfs: int | None, draft: Draft, deadline: Deadline) -> dict[str, object]:
    """Publish an open squashfs, if there is one, and what was removed; a job on several nodes hands it in.

    Return what the log says of it. Raises the store's errors.
    """
    from warmstart.caches.store import client, ending

    store, run, caches, where, quota = target
    place = _place(store, run)
    if place is None:
        made = client.publish(store, where, squashfs, draft, deadline, quota=quota)
        told = {"bundle": made.sha256, "size": made.size, "generation": made.number} if made.number else {}
        return {**told, "entries": len(draft.entries) if made.sha256 else 0}
    row = None if squashfs is None else client.put(store, where, squashfs, draft, deadline, quota=quota)
    store.worker.run(deadline, ending.hand_in, place, store.writer, run.node, run.leads(caches), where, row, draft)
    return {"entries": 0, "handed_in": len(draft.entries)}


def ended(store: StoreClient, audit: Log, run: Run, deadline: Deadline) -> None:
    """Say that this node of a job on several publishes nothing more. Raises the store's errors.

    The last one lists what all have handed in.
    """
    if place := _place(store, run):
        from warmstart.caches.store import ending

        number = len(expand(run.nodelist))
        united = store.worker.run(deadline.within(UNION_SECONDS), ending.ended, place, store.writer, run.node, number)
        tell_united(audit, place.name, united or ())


def tell_united(audit: Log, run: str, united: Iterable[United]) -> None:
    """Tell the log what of a run became visible together."""
    for one in united:
        _, scope, profile, namespace = one.where
        what = {"scope": scope, "profile": profile, "namespace": namespace, "bundles": len(one.rows)}
        problem = {"problem": one.problem} if one.problem else {}
        audit.emit(events.HARVEST_MERGED, run=run, generation=one.number, **what, **problem)


def _place(store: StoreClient, run: Run) -> ending.Run | None:
    """Return where the nodes of a run hand in; None if it has one node, which publishes."""
    if not run.nodelist:
        return None
    from warmstart.caches.store import ending

    return ending.Run(store.path, ending.name_of(run.uid, run.cluster, run.job_id, run.restarts))
