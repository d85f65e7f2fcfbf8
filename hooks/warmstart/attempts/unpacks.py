"""Unpack images that hooks have asked for (`images.unpacks`), each in a process of its own.

It is idle while nobody waits, and at full speed while somebody does.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from functools import partial

from warmstart.audit import events
from warmstart.audit.log import Log
from warmstart.errors import WarmstartError
from warmstart.host import process
from warmstart.images import unpacking
from warmstart.images.store.client import ImageStoreClient
from warmstart.images.unpacking import Tree
from warmstart.images.unpacks import UNPACKS, ImageNotUnpacked, UnpackRequest
from warmstart.queue import DONE, LATER, Item, Outcome, Queue
from warmstart.session import Session

KIND = UNPACKS


def attempt(session: Session, item: Item) -> Outcome:
    """Make one attempt at an image, and audit it under the job that asked first."""
    queue = Queue(session.paths, UNPACKS)
    request = queue.read(item, UnpackRequest)
    if request is None:
        return DONE
    audit = session.audit.for_job(**request.job._asdict())
    if request.problem:  # who asks meanwhile waits for this attempt
        request = request._replace(problem="")
        queue.put(item, request)
    store, started = ImageStoreClient(session.store.worker, session.policy.paths.store), time.monotonic()
    try:
        about = unpacking.unpack(
            request,
            policy=session.policy,
            paths=session.paths,
            store=store,
            evicted=partial(_evicted, audit, f"room for {request.reference}"),
            hasten=_Priority().set,
        )
    except (WarmstartError, OSError) as error:
        failure = (
            error
            if isinstance(error, WarmstartError)
            else ImageNotUnpacked(image=request.reference, problem=error.strerror or str(error))
        )
        session.failures.append(failure)
        queue.put(item, request._replace(problem=str(failure.fields.get("problem", failure))))
        audit.emit(events.IMAGE_UNPACK_FAILED, image=request.reference, attempt=item.attempts, error=failure.as_audit())
        return LATER
    if about:
        took = round((time.monotonic() - started) * 1000, 3)
        audit.emit(
            events.IMAGE_UNPACKED,
            image=request.reference,
            tree=item.key,
            bytes=about.bytes,
            files=about.files,
            fetched_bytes=about.packed,
            duration_ms=took,
        )
    return DONE


def _evicted(audit: Log, reason: str, tree: Tree) -> None:
    audit.emit(events.IMAGE_TREE_EVICTED, **tree.as_audit(), reason=reason)


class _Priority:
    """The priority of this process and of the programs that it has started: a process group of their own."""

    def __init__(self) -> None:
        with suppress(PermissionError):  # it leads a session already
            os.setpgid(0, 0)
        self._is_idle: bool | None = None  # maintenance, which is idle, may have started it

    def set(self, is_awaited: bool) -> None:
        """Be as fast as any process while somebody waits, idle otherwise."""
        if self._is_idle != (not is_awaited):
            self._is_idle = not is_awaited
            process.set_idle(self._is_idle)
