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
from warmstart.host.files import opened_dir
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
    read: int  # bytes; what this user's other sets had already was not


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
        shelf.remove_unfinished(fd)
        missing = [file for file in seen.files if not shelf.has(fd, file.key(asker.uid))]
        needed = sum(file.size for file in missing)
        _make_room(request, given, fd, paths, seen.size, needed, audit)
        read = 0
        for file in seen.files:
            if file in missing or file.sha256:
                source = client.opened(file, ours, after(OPEN_S))
                try:
                    _copy_or_prove(request, client, fd, file, source, given.rate, is_here=file not in missing)
                finally:
                    os.close(source)
                read += file.size
        keys = tuple(file.key(asker.uid) for file in seen.files)
        shelf.add(fd, name, About(seen.path, asker.user, asker.uid, keys, seen.size))
        return Copied(seen, read)


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


def _copy_or_prove(  # noqa: PLR0917 - of what, where, how fast
    request: ModelRequest, client: ModelClient, fd: int, file: ModelFile, source: int, rate: int, *, is_here: bool
) -> None:
    """Copy an open file. Where its copy `is_here`, which others share, only read it: a SHA-256 is no secret.

    Whoever had another file's SHA-256 and size, and not its content, would otherwise be shown that.
    """
    key = file.key(request.asker.uid)
    target = -1 if is_here else _made(fd, key)
    try:
        if not is_here:
            allocate(target, file.size, keep_length=True)
        deadline = after(max(AT_LEAST_S, 2 * file.size / min(rate, SLOWEST)))
        digest = copy_in_child(source, target, file.size, rate, deadline)
        client.check(file, after(OPEN_S))
        if file.sha256 and digest != file.sha256:
            problem = f"the SHA-256 of {file.path} is not the one in its name, but {digest}"
            raise ModelNotCopied(model=request.model, problem=problem)
        if not is_here:
            os.fchmod(target, 0o444)
            os.fsync(target)
            _name(fd, key)
    finally:
        if not is_here:
            os.close(target)


def _made(fd: int, key: str) -> int:
    with opened_dir(FILES, fd) as copies:
        return os.open(key + COPYING, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400, dir_fd=copies)


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
