"""Copy models that jobs have named to this node's disk, one file after the other. Runs as root, for no job.

A model has room for all its files before the first is copied. Owners take turns after a minute, between two files.
"""

from __future__ import annotations

import math
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from warmstart.audit.log import Log
from warmstart.errors import WarmstartError
from warmstart.host.deadline import after
from warmstart.host.files import mount_id, opened_dir
from warmstart.host.identity import Identity
from warmstart.host.space import no_room, room
from warmstart.paths import NodePaths
from warmstart.policy.keys import Policy, User
from warmstart.queue import DONE, LATER, MORE, Item, Outcome, Queue
from warmstart.session import Session
from warmstart.wings.models import events, shelf
from warmstart.wings.models.client import ModelClient, copy_in_child
from warmstart.wings.models.look import Look, ModelFile, ModelUnusable, is_guarded, is_owned, shared_by, whose_of
from warmstart.wings.models.offered import DAY_S, Models, offered
from warmstart.wings.models.requests import COPIES, ModelRequest
from warmstart.wings.models.shelf import About

KIND = COPIES
LOOK_S = 120.0
OPEN_S = 60.0
TURN_S = 60.0
SHARE = 2  # a user's own copies have at most this part of models.keep


class Attempt(NamedTuple):
    """What a turn has brought."""

    look: Look
    request: ModelRequest  # with what was done of it
    is_whole: bool


def attempt(session: Session, item: Item) -> Outcome:
    """Have one turn at a model; audit, under the job that asked first, how an attempt ended."""
    queue, started = Queue(session.paths, COPIES), time.monotonic()
    _clear(session, queue)
    request = queue.read(item, ModelRequest)
    if request is None:
        return DONE
    audit = session.audit.for_job(**request.asker._asdict())
    if request.problem:  # who asks meanwhile hears that it is tried
        request = request._replace(problem="")
        queue.put(item, request)
    try:
        copied = copy_model(request, session, audit, lambda: queue.find(item.key) is not None)
    except (WarmstartError, OSError) as error:
        failure = (
            error
            if isinstance(error, WarmstartError)
            else ModelUnusable(model=request.model, problem=error.strerror or str(error))
        )
        session.failures.append(failure)
        queue.put(item, request._replace(problem=str(failure.fields.get("problem", failure))))
        number = item.attempts
        audit.emit(events.MODEL_COPY_FAILED, model=request.model, attempt=number, error=failure.as_audit())
        return LATER
    if copied is None:
        return DONE
    request = copied.request
    seconds = request.seconds + time.monotonic() - started
    if not copied.is_whole:
        queue.put(item, request._replace(seconds=seconds))
        return MORE
    audit.emit(
        events.MODEL_COPIED,
        model=copied.look.path,
        rule=request.shared.rule if request.shared else "",
        files=len(copied.look.files),
        bytes=copied.look.size,
        fetched_bytes=request.read,
        duration_ms=round(seconds * 1000, 3),
    )
    return DONE


class _Here(NamedTuple):
    """The node's copies, while one model is copied."""

    shelf: int
    given: Models
    paths: NodePaths
    audit: Log
    client: ModelClient
    channel: socket.socket  # its process sends descriptors to
    is_wanted: Callable[[], bool]  # as long as nobody has withdrawn the request


def copy_model(request: ModelRequest, session: Session, audit: Log, is_wanted: Callable[[], bool]) -> Attempt | None:
    """Copy files of a model that this node lacks, for a turn; after the last one, make a set of all.

    None if it has that set already, or nobody wants it any more. Files that were copied stay when this fails, and are
    not copied again within a day. Raises `ModelUnusable`, `WorkerSilent`, and `OSError`.
    """
    policy, paths, asker = session.policy, session.paths, request.asker
    node = paths.node
    shelf.make(policy, node)
    user = Identity(asker.user, asker.uid, request.gid)
    ours, theirs = socket.socketpair()
    client = ModelClient(user, request.model, theirs.fileno())
    with ours, theirs, opened_dir(shelf.path_of(policy, node)) as fd:
        return _copy_files(request, _Here(fd, offered(policy), paths, audit, client, ours, is_wanted))


def _copy_files(request: ModelRequest, here: _Here) -> Attempt | None:
    seen = here.client.look(here.given.prefixes, after(LOOK_S))
    rule, _ = shared_by(seen, [request.shared] if request.shared else ())
    request, whose, before = request._replace(shared=rule), whose_of(rule, request.asker.uid), request.read
    if shelf.exists(here.shelf, seen.key(whose)):
        return None
    wanted = {key: file for file in seen.files if not shelf.has(here.shelf, key := file.key(whose))}
    try:
        _make_room(request, here, seen.size, {key: file.size for key, file in wanted.items()})
        shared = [file for file in seen.files if file.sha256 and file.key(whose) not in wanted]
        unproven = [file for file in shared if file.version(whose) not in request.proven]
        until = after(TURN_S)
        for key, file in (*wanted.items(), *(("", file) for file in unproven)):
            if until.expired() and request.read > before:
                return Attempt(seen, request, is_whole=False)
            _copy_or_prove(request, here, file, key)
            proven = (*request.proven, file.version(whose))
            request = request._replace(read=request.read + file.size, proven=proven)
            if not here.is_wanted():
                shelf.give_up(here.shelf, [*wanted])
                return None
    except BaseException:
        shelf.give_up(here.shelf, [*wanted])
        raise
    shelf.add(here.shelf, seen.key(whose), _about(request, seen, whose))
    return Attempt(seen, request, is_whole=True)


def _about(request: ModelRequest, seen: Look, whose: str) -> About:
    """Return what is kept of a set. What many have one copy of counts as its owner's."""
    keys, owner = tuple(file.key(whose) for file in seen.files), User(request.asker.user, request.asker.uid)
    if request.shared:
        uid = seen.files[0].owner
        owner = next((user for user in request.shared.owners if user.uid == uid), User("root", 0))
    return About(seen.path, *owner, whose if request.shared else "", keys, seen.size)


def _make_room(request: ModelRequest, here: _Here, size: int, wanted: dict[str, int]) -> None:
    """Reserve room for these copies, and evict others for it. Raises `ModelUnusable`, `OSError`."""
    keep, fd = here.given.keep, here.shelf
    needed = sum(size for key, size in wanted.items() if not shelf.is_reserved(fd, key))
    uid = None if request.shared else request.asker.uid
    share = keep if uid is None else keep // SHARE
    if size > share:
        whose = "" if uid is None else "half of "
        raise ModelUnusable(model=request.model, problem=f"it has {size} bytes, more than {whose}models.keep, {keep}")
    if uid is not None:
        for gone in shelf.evict(fd, here.paths, share - size, before=time.time() - DAY_S, uid=uid):
            _evicted(here.audit, gone, f"room for {request.model}")
        if shelf.held(fd, here.paths, uid) + size > share:
            problem = "a user's half of models.keep has no room for it: what jobs have used within a day stays"
            raise ModelUnusable(model=request.model, problem=problem)
    for gone in shelf.evict(fd, here.paths, keep - needed, needed, before=time.time() - DAY_S):
        _evicted(here.audit, gone, f"room for {request.model}")
    if shelf.total(fd) + needed > keep:
        problem = "models.keep has no room for it: what jobs have used within a day stays"
        raise ModelUnusable(model=request.model, problem=problem)
    if room(fd) < needed:
        raise ModelUnusable(model=request.model, problem=no_room(fd, needed))
    for key, each in wanted.items():
        os.close(shelf.reserve(fd, key, each))


def _copy_or_prove(request: ModelRequest, here: _Here, file: ModelFile, key: str) -> None:
    """Copy a file as `key`. "": its copy is there, and others share it: only read the file, for a SHA-256 is no secret.

    Whoever had another file's SHA-256 and size, and not its content, would otherwise be shown that.
    """
    source = here.client.opened(file, here.channel, after(OPEN_S))
    target = -1
    try:
        _require_ours(request, file, source)
        _check_shared(request, file, source)
        if key:
            target = shelf.reserve(here.shelf, key, file.size)
        try:
            digest = copy_in_child(source, target, file.size, here.given.rate)
        except OSError as error:
            raise ModelUnusable(model=request.model, problem=f"{file.path}: {error.strerror}") from error
        here.client.check(file, after(OPEN_S))
        if file.sha256 and digest != file.sha256:
            problem = f"the SHA-256 of {file.path} is not the one in its name, but {digest}"
            raise ModelUnusable(model=request.model, problem=problem)
        if key:
            shelf.finish(here.shelf, key, target)
    finally:
        os.close(source)
        if target >= 0:
            os.close(target)


def _require_ours(request: ModelRequest, file: ModelFile, source: int) -> None:
    """Raise `ModelUnusable` for a file that root would read at a user's pace."""
    if _is_of_users_daemon(source):
        problem = f"{file.path} is on a file system that a user mounted (FUSE)"
        raise ModelUnusable(model=request.model, problem=problem)


def _check_shared(request: ModelRequest, file: ModelFile, source: int) -> None:
    """Raise `ModelUnusable` if an open file that many would be shown is not as its user's process has said."""
    if request.shared is None:
        return
    found = os.fstat(source)
    now = found.st_size, found.st_mtime_ns, found.st_ino
    is_same = now == (file.size, file.mtime_ns, file.inode)
    if not (is_same and is_guarded(found) and is_owned(found.st_uid, request.shared)):
        raise ModelUnusable(model=request.model, problem=f"{file.path} is not as it was found")


def _evicted(audit: Log, gone: shelf.Set, reason: str) -> None:
    audit.emit(events.MODEL_EVICTED, model=gone.about.model, bytes=gone.about.size, reason=reason)


def prune(policy: Policy, paths: NodePaths, audit: Log) -> int:
    """Evict what is beyond `models.keep`, and remove what is of no set; return how many sets went. Raises `OSError`."""
    with suppress(FileNotFoundError), opened_dir(shelf.path_of(policy, paths.node)) as fd:
        gone = shelf.evict(fd, paths, offered(policy).keep, before=math.inf)
        for item in gone:
            _evicted(audit, item, "models.keep")
        shelf.sweep(fd)
        return len(gone)
    return 0


def remove(policy: Policy, paths: NodePaths, audit: Log, model: str) -> tuple[int, list[int]]:
    """Remove the copies of a model; return how many sets went, and the jobs that have others. Raises `OSError`."""
    with suppress(FileNotFoundError), opened_dir(shelf.path_of(policy, paths.node)) as fd:
        gone, kept = shelf.remove(fd, paths, model)
        for item in gone:
            _evicted(audit, item, "removed")
        return len(gone), sorted({job for item in kept for job in item.jobs})
    return 0, []


def _clear(session: Session, queue: Queue) -> None:
    """Remove what was being copied when the last process died; not while a model has room whose next turn comes."""
    if any(request and request.read for request in (queue.read(item, ModelRequest) for item in queue.all())):
        return
    where = shelf.path_of(session.policy, session.paths.node)
    with session.isolated("unfinished copies of models"), suppress(FileNotFoundError):
        if where:
            with opened_dir(where) as fd:
                shelf.give_up(fd)


def _is_of_users_daemon(fd: int) -> bool:
    """Return whether an open file is served by a FUSE daemon of a user's, or of a mount that is not ours to judge.

    Such a daemon answers when it likes, and says of owner, mode and content what it likes (mount.fuse3(8), user_id).
    """
    mount = mount_id(fd)
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as mounts:
        fields = next((line.split() for line in mounts if line.startswith(f"{mount} ")), None)
    if fields is None:
        return True
    kind, *_, options = fields[fields.index("-") + 1 :]  # its source may be empty
    return kind.startswith("fuse") and "user_id=0" not in options.split(",")
