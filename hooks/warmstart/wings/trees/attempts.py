"""Pack trees that jobs have asked for."""

from __future__ import annotations

import time

from warmstart.errors import WarmstartError
from warmstart.queue import DONE, LATER, Item, Outcome, Queue
from warmstart.session import Session
from warmstart.wings.trees import events, packing, requests
from warmstart.wings.trees.current import TreeUnusable
from warmstart.wings.trees.requests import PACKS, TreeRequest
from warmstart.wings.trees.walk import TreeRefused

KIND = PACKS


def attempt(session: Session, item: Item) -> Outcome:
    """Make one attempt at a tree, and audit it under the job that asked first."""
    queue, started = Queue(session.paths, PACKS), time.monotonic()
    request = queue.read(item, TreeRequest)
    if request is None:
        return DONE
    if requests.is_refused(session.paths, request):  # another user's, of the same tree, until that is tried again
        return LATER
    audit = session.audit.for_job(**request.asker._asdict())
    if request.problem:  # who asks meanwhile hears that it is tried
        request = request._replace(problem="", refused=False)
        queue.put(item, request)
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
        queue.put(item, request._replace(problem=told, refused=refused))
        audit.emit(events.TREE_PACK_FAILED, tree=request.tree, attempt=item.attempts, error=failure.as_audit())
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
