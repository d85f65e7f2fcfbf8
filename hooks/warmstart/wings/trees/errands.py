"""Pack trees that jobs have asked for."""

from __future__ import annotations

import time

from warmstart.errand import Errand, Errands, Kind
from warmstart.errands.loop import DONE, LATER, Outcome, Turn, Work
from warmstart.errors import WarmstartError
from warmstart.session import Session
from warmstart.wings.trees import events, packing, requests
from warmstart.wings.trees.current import TreeUnusable
from warmstart.wings.trees.requests import PACKS, TreeRequest
from warmstart.wings.trees.walk import TreeRefused


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
        told, refused = str(failure.fields.get("problem", failure)), isinstance(failure, TreeRefused)
        errands.put(turn.errand, request._replace(problem=told, refused=refused))
        attempt = turn.errand.attempts
        audit.emit(events.TREE_PACK_FAILED, tree=request.tree, attempt=attempt, error=failure.as_audit())
        return LATER
    if packed:
        audit.emit(
            events.TREE_PACKED,
            tree=packed.look.path,
            scope=request.scope,
            bundle=packed.published.sha256,
            files=packed.staged.files,
            bytes=packed.staged.size,
            size=packed.published.size,
            left_out=packed.staged.left_out,
            examples=packed.staged.examples,
            duration_ms=round((time.monotonic() - started) * 1000, 3),
        )
    return DONE


WORK = {PACKS.name: Work(PACKS, pack, due=to_pack, by_maintenance=False)}
