"""Copy models that jobs have named to this node's disk, one file after the other. Runs as root, for no job."""

from __future__ import annotations

import math
import os
import socket
import time
from contextlib import suppress
from typing import NamedTuple

from warmstart.audit.journal import Journal
from warmstart.errand import Errands
from warmstart.errands.loop import DONE, LATER, Outcome, Turn, Work
from warmstart.errors import ResourceError, WarmstartError
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir, unlink_if_there
from warmstart.host.identity import Identity
from warmstart.host.space import allocate, no_room, room
from warmstart.paths import NodePaths
from warmstart.policy.compiled import Policy
from warmstart.wings.models import events, shelf
from warmstart.wings.models.client import ModelClient, copy_in_child
from warmstart.wings.models.look import Look, ModelFile
from warmstart.wings.models.offered import DAY_S, Models, offered
from warmstart.wings.models.requests import COPIES, ModelRequest
from warmstart.wings.models.shelf import COPYING, FILES, About

LOOK_S = 120.0
OPEN_S = 60.0
SLOWEST = 4 << 20  # bytes a second, below which a copy is given up
AT_LEAST_S = 1800.0


class ModelNotCopied(ResourceError):
    """A model could not be copied to this node."""

    code = "model-not-copied"
    template = "model {model} is not copied to this node: {problem}"
    hint = "jobs read it from the shared file system meanwhile (docs/wings/models.md)"


class Copied(NamedTuple):
    """What was copied."""

    look: Look
    read: int  # bytes; what other sets had already was not


def copy(turn: Turn) -> Outcome:
    """Make one attempt at a model, and audit it under the job that asked first."""
    session, errands, started = turn.session, Errands(turn.session.paths, COPIES), time.monotonic()
    request = errands.read(turn.errand, ModelRequest)
    if request is None:
        return DONE
    audit = session.audit.for_job(**request.asker._asdict())
    try:
        copied = copy_model(request, session.policy, session.paths, audit)
    except (WarmstartError, OSError) as error:
        failure = (
            error
            if isinstance(error, WarmstartError)
            else ModelNotCopied(model=request.model, problem=error.strerror or str(error))
        )
        session.failures.append(failure)
        errands.put(turn.errand, request._replace(problem=str(failure.fields.get("problem", failure))))
        attempt = turn.errand.attempts
        audit.emit(events.MODEL_COPY_FAILED, model=request.model, attempt=attempt, error=failure.as_audit())
        return LATER
    if copied:
        audit.emit(
            events.MODEL_COPIED,
            model=copied.look.path,
            files=len(copied.look.files),
            bytes=copied.look.size,
            fetched_bytes=copied.read,
            duration_ms=round((time.monotonic() - started) * 1000, 3),
        )
    return DONE


def copy_model(request: ModelRequest, policy: Policy, paths: NodePaths, audit: Journal) -> Copied | None:
    """Copy the files of a model that this node lacks, and make a set of all; None if it has that set already.

    Files that were copied stay when this fails, and are not copied again within a day. Raises `ModelUnusable`,
    `ModelNotCopied`, `WorkerSilent`, and `OSError`.
    """
    given, node, asker = offered(policy), os.path.basename(paths.root), request.asker
    shelf.make(policy, node)
    user = Identity(asker.user, asker.uid, request.gid)
    ours, theirs = socket.socketpair()
    with (
        ours,
        theirs,
        opened_dir(shelf.path_of(policy, node)) as fd,
        ModelClient(user, request.model, theirs.fileno()) as client,
    ):
        seen = client.look(given.prefixes, after(LOOK_S))
        name = seen.key(asker.uid)
        with suppress(FileNotFoundError):
            os.stat(f"{shelf.SETS}/{name}", dir_fd=fd)
            return None
        missing = {file.key(asker.uid): file for file in seen.files if not shelf.has(fd, file.key(asker.uid))}
        needed = sum(file.size for file in missing.values())
        _make_room(request, given, fd, paths, seen.size, needed, audit)
        for key, file in missing.items():
            source = client.opened(file, ours, after(OPEN_S))
            try:
                digest = _copy(fd, key, source, file, given.rate)
                client.check(file, after(OPEN_S))
                if file.sha256 and digest != file.sha256:
                    problem = f"the SHA-256 of {file.path} is not the one in its name, but {digest}"
                    raise ModelNotCopied(model=request.model, problem=problem)
                _name(fd, key)
            finally:
                os.close(source)
        keys = tuple(file.key(asker.uid) for file in seen.files)
        shelf.add(fd, name, About(seen.path, asker.user, asker.uid, keys, seen.size))
        return Copied(seen, needed)


def _make_room(  # noqa: PLR0917 - of what, where, how much
    request: ModelRequest, given: Models, fd: int, paths: NodePaths, size: int, needed: int, audit: Journal
) -> None:
    if size > given.keep:
        raise ModelNotCopied(model=request.model, problem=f"it has {size} bytes, more than models.keep, {given.keep}")
    for gone in shelf.evict(fd, paths, given.keep - needed, needed, before=time.time() - DAY_S):
        _evicted(audit, gone, f"room for {request.model}")
    if shelf.total(fd) + needed > given.keep:
        problem = "models.keep has no room for it: what jobs have used within a day stays"
        raise ModelNotCopied(model=request.model, problem=problem)
    if room(fd) < needed:
        raise ModelNotCopied(model=request.model, problem=no_room(fd, needed))


def _copy(fd: int, key: str, source: int, file: ModelFile, rate: int) -> str:
    """Copy an open file to where it has no name of its own yet; return its SHA-256."""
    with opened_dir(FILES, fd) as copies:
        unlink_if_there(key + COPYING, copies)
        target = os.open(key + COPYING, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400, dir_fd=copies)
    try:
        allocate(target, file.size, keep_length=True)
        deadline = after(max(AT_LEAST_S, 2 * file.size / min(rate, SLOWEST)))
        digest = copy_in_child(source, target, file.size, rate, deadline)
        os.fchmod(target, 0o444)
        os.fsync(target)
        return digest
    finally:
        os.close(target)


def _name(fd: int, key: str) -> None:
    with opened_dir(FILES, fd) as copies:
        os.rename(key + COPYING, key, src_dir_fd=copies, dst_dir_fd=copies)
        os.fsync(copies)


def _evicted(audit: Journal, gone: shelf.Set, reason: str) -> None:
    audit.emit(events.MODEL_EVICTED, model=gone.about.model, bytes=gone.about.size, reason=reason)


def prune(policy: Policy, paths: NodePaths, audit: Journal) -> int:
    """Evict what is beyond `models.keep`, and remove what is of no set; return how many sets went. Raises `OSError`."""
    with suppress(FileNotFoundError), opened_dir(shelf.path_of(policy, os.path.basename(paths.root))) as fd:
        gone = shelf.evict(fd, paths, offered(policy).keep, before=math.inf)
        for item in gone:
            _evicted(audit, item, "models.keep")
        shelf.sweep(fd)
        return len(gone)
    return 0


WORK = {COPIES.name: Work(COPIES, copy, by_maintenance=False)}
