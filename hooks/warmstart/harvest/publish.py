"""What a harvest asks of the store, and gives it: a bundle for readers, or a part of what a job's nodes hand in.

All of it may be done twice: what is published is known, and left out.
"""

from __future__ import annotations

from warmstart.errors import StoreError
from warmstart.host.deadline import Deadline
from warmstart.lean import NamedTuple, suppress
from warmstart.paths import NodePaths
from warmstart.run.state import Run, SeededBundle
from warmstart.seed import node_cache
from warmstart.store import bundles, parts
from warmstart.store.client import StoreClient
from warmstart.store.layout import Namespace
from warmstart.store.manifest import Draft, Entries
from warmstart.store.parts import RunParts

STORE_SECONDS = 5.0  # for one question


class Given(NamedTuple):
    """What the store has taken."""

    bundle: str | None  # its id; None if the store had every entry
    sha256: str = ""
    told: dict[str, object] = {}  # noqa: RUF012 - what the log says of it; never mutated
    superseded: list[str] = []  # noqa: RUF012 - entries of which another job's version took the place meanwhile


def known(store: StoreClient, run: Run, where: Namespace, quota: int, deadline: Deadline, *, leads: bool) -> list[str]:
    """Return the entries that the store has. Raises `StoreFailed` and `WorkerSilent`.

    With those that other nodes of the run have handed in, but for the first node (`leads`): its version counts.
    """
    place, answer_by = _place(store, run), deadline.within(STORE_SECONDS)
    found = store.run_in(answer_by, bundles.known_entries, where, run.user, run.uid, quota=quota, fresh=run.fresh)
    if place and not leads:
        found += store.worker.run(answer_by, parts.entries, place, where)
    return found


def entries_of(
    store: StoreClient, paths: NodePaths, where: Namespace, deadline: Deadline, bundle: SeededBundle
) -> Entries:
    """Return the entries of a bundle with their files, by the node's copy, else by the store; none if it is gone."""
    with suppress(OSError, ValueError):
        return node_cache.entries_of(paths.bundles, bundle.sha256)
    with suppress(StoreError):
        where = where._replace(scope=bundle.scope)
        return store.manifest(where, bundle.bundle, deadline.within(STORE_SECONDS)).entries
    return {}


def publish(  # noqa: PLR0917 - what, where, and for whom
    store: StoreClient, run: Run, where: Namespace, squashfs: int, draft: Draft, quota: int, deadline: Deadline
) -> Given:
    """Publish an open squashfs, or hand it in if the job has several nodes. Raises the store's errors."""
    if place := _place(store, run):
        part = store.hand_in(place, where, squashfs, draft, run.nodelist, deadline, quota=quota)
        return Given(part, told={"entries": 0, "handed_in": len(draft.entries)})
    made = store.publish(where, squashfs, draft, deadline, quota=quota)
    told = {**made._asdict(), "superseding": len(made.superseding)} if made.bundle else {}
    told["entries"] = len(draft.entries) if made.bundle else 0
    return Given(made.bundle, made.sha256, told, sorted({*draft.based_on} - {*made.superseding}))


def ended(store: StoreClient, paths: NodePaths, run: Run, deadline: Deadline) -> None:
    """Say that this node of a job on several publishes nothing more. Raises the store's errors.

    The last one starts the program that publishes what all have handed in.
    """
    if place := _place(store, run):
        standing = store.run_in(deadline.within(STORE_SECONDS), parts.finish, place, run.node, run.nodelist)
        if standing.parts and not standing.missing:
            from warmstart import queue

            queue.start(paths, parts.PARTS)


def _place(store: StoreClient, run: Run) -> RunParts | None:
    """Return where the nodes of a run hand in; None if it has one node, which publishes."""
    if not run.nodelist:
        return None
    return RunParts(store.path, parts.name_of(run.uid, run.cluster, run.job_id, run.restarts))
