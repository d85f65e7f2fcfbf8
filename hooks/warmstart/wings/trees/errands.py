"""Pack trees that jobs have asked for, and compare the copies that this node has with their trees."""

from __future__ import annotations

import time

from warmstart.errand import Errand, Errands, Kind
from warmstart.errands.loop import DONE, LATER, Outcome, Turn, Work
from warmstart.errors import WarmstartError
from warmstart.session import Session
from warmstart.wings.trees import comparison, events, packing, requests
from warmstart.wings.trees.comparison import Here
from warmstart.wings.trees.current import TreeUnusable
from warmstart.wings.trees.offered import offered
from warmstart.wings.trees.requests import PACKS, TreeRequest
from warmstart.wings.trees.walk import TreeNotShared, TreeTooLarge

COMPARISONS = Kind("comparisons")
COMPARE_S = 900.0  # after which no further tree is compared


def to_pack(session: Session, kind: Kind) -> list[Errand]:
    """Return the requests that are due; forget old ones."""
    Errands(session.paths, kind).forget_old()
    return [item.errand for item in requests.due(session.paths)]


def pack(turn: Turn) -> Outcome:
    """Make one attempt at a tree, and audit it under the job that asked first."""
    session, errands, started = turn.session, Errands(turn.session.paths, PACKS), time.monotonic()
    request = errands.read(turn.errand, TreeRequest)
    if request is None:
        return DONE
    audit = session.audit.for_job(**request.asker._asdict())
    if request.problem:  # who asks meanwhile hears that it is tried
        request = request._replace(problem="", refused=False)
        errands.put(turn.errand, request)
    try:
        packed = packing.pack_tree(request, session.paths, session.policy, session.store, audit)
    except (WarmstartError, OSError) as error:
        failure = (
            TreeUnusable(tree=request.tree, problem=f"its copy: {error.strerror}")
            if isinstance(error, OSError)
            else error
        )
        session.failures.append(failure)
        told, refused = str(failure.fields.get("problem", failure)), isinstance(failure, TreeNotShared | TreeTooLarge)
        errands.put(turn.errand, request._replace(problem=told, refused=refused))
        attempt = turn.errand.attempts
        audit.emit(events.TREE_PACK_FAILED, tree=request.tree, attempt=attempt, error=failure.as_audit())
        return LATER
    if packed:
        audit.emit(
            events.TREE_PACKED,
            tree=packed.look.path,
            scope=request.scope,
            bundle=packed.published.bundle,
            files=packed.staged.files,
            bytes=packed.staged.size,
            size=packed.published.size,
            left_out=packed.staged.left_out,
            examples=packed.staged.examples,
            duration_ms=round((time.monotonic() - started) * 1000, 3),
        )
    return DONE


def to_compare(session: Session, _: Kind) -> list[Errand]:
    """Return the copies that no node has compared for long, longest ago first. Scopes take turns."""
    interval = offered(session.policy).compare
    found = [] if interval is None else comparison.due(session.paths, session.store, interval)
    return [Errand(item.where.scope, 0, 0, _key(item)) for item in found]


def lock_store(session: Session) -> bool:
    """Return whether no other node of the store compares."""
    is_wanted = offered(session.policy).compare is not None
    return is_wanted and session.store.lock(session.store_deadline(), COMPARISONS.name)


def compare(turn: Turn) -> Outcome:
    """Compare one copy. If its user's process does not answer, its scope has its next turn in another process."""
    session = turn.session
    for item in comparison.here(session.paths, session.store.path):
        if _key(item) == turn.errand.key:
            comparison.compare(item, session.paths, session.policy, session.store, session.audit)
    return DONE


def _key(item: Here) -> str:
    return f"{item.where.scope}/{item.where.name}/{item.bundle}"


WORK = {
    PACKS.name: Work(PACKS, pack, due=to_pack, by_maintenance=False),
    COMPARISONS.name: Work(
        COMPARISONS, compare, due=to_compare, enter=lock_store, process_s=COMPARE_S, by_maintenance=False
    ),
}
