"""Requests for background imports on one node, and who is at work on them. Runs as root.

    <node state>/imports/          root, 0700
        KEY.json                   one image that this node imports (`ImportRequest`); KEY names image and node
        KEY.lock                   locked (flock) by the process that imports it
        KEY.failed                 how its last import on this node failed, for the hooks that wait here
        slot-N                     locked by one import each: at most `images.parallel` run at a time
        queue                      locked while requests are added, chosen or changed

Hooks write requests and start the program (`entry.import_image`), but so does whoever finds one that nobody works on:
another hook, an import that ends, maintenance. So a hook may die at any point. A request goes when its image is
published, when trying again is useless, when it is cancelled, or `images.import_deadline` after it was made.

Fair order: the import that starts next belongs to the user with the fewest at work and in front of it, and among these
to the one whose turn it is: each user has one turn after the other, and who comes new has one beside those that wait
longest. So one who asks for a hundred images does not keep the others waiting. An image that several users want has the
best rank that one of them gives it. A user has at most `MOST_PER_USER` requests on a node.

At most `images.parallel` run at a time. If all of them are one user's while another one waits, one more starts, since
none is ended before its deadline: mksquashfs cannot resume. Images of one repository share layers, so a second one is
not started while the first may still fetch them: it would wait in a slot.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import NamedTuple

from warmstart.errors import StoreError, WarmstartError
from warmstart.host import detached, files, wire
from warmstart.host.deadline import after
from warmstart.host.files import ensure_path, names_in, opened_dir, opened_lock, read_small, replace_file
from warmstart.images import choice
from warmstart.images.query import Queue, Site
from warmstart.images.store.layout import CLOCK_SKEW, ImageQuery
from warmstart.images.store.published import RememberedFailure

MOST_PER_USER = 16
MOST_FURTHER = 16  # users who are remembered to want an image that somebody has asked for
MOST_ATTEMPTS = 5
FIRST_BACKOFF_S = 10.0  # after an import that died; doubled after each further one
STARTING_S = 10.0  # a program that was started less than this ago may not have its lock yet
SAME_REPOSITORY_S = 600.0  # how long an import keeps others of its repository from starting
LOCK_S = 2.0
EXPIRED = "its time is over (images.import_deadline)"
UNIT = "warmstart-import@{key}.service"
SYSTEMD = "/run/systemd/system"  # exists where systemd is the system manager (sd_booted(3))
SYSTEMCTL = "/usr/bin/systemctl"
SYSTEMCTL_S = 5.0
REQUEST = ".json"
FAILED = ".failed"
LOCK = ".lock"
_QUEUE = "queue"
_LONGEST = 16384
_LONGEST_UID = 20
_PAUSE_S = 0.05
_KEY = re.compile(r"[0-9a-f]{32}\Z")


class ImportAbandoned(StoreError):
    """A background import is not tried again."""

    code = "image-import-abandoned"
    template = "the import of image {image} on node {node} was given up: {problem}"
    hint = "`warmstart audit --event image.import-failed` on that node shows why; the next job that needs it asks again"


class ImportRequest(NamedTuple):
    """What a hook asks for. Times are in seconds since the epoch."""

    reference: str  # canonical
    kind: str  # MACHINE.RECIPE of the importer
    private: str  # name of the store of private images, "" for the shared one
    user: str  # who is charged; as in `layout.Charged`
    uid: int
    account: str
    cluster: str  # of the job that asked first
    node: str
    job_id: int
    run_id: str
    asked: float
    attempts: int = 0  # that were started
    tried: float = 0.0  # when the last one was started; 0: the next may start at once
    fresh_after: float = 0.0  # a tag that was resolved before this is asked again, whatever `images.tag_ttl`
    further: tuple[int, ...] = ()  # uids of others who want the image, too
    turn: int = 0  # of its user's, when it was asked for

    @classmethod
    def of(cls, query: ImageQuery, site: Site) -> ImportRequest:
        """Return the request for an image by a hook."""
        who, charged = site.requester, site.charged
        whose = (charged.user, charged.uid, charged.account)
        return cls(
            query.reference.canonical(), query.kind, site.queue.private, *whose,
            who.cluster, who.node, who.job_id, who.run_id, time.time(), fresh_after=query.fresh_after,
        )  # fmt: skip

    @property
    def key(self) -> str:
        """The request's name: the same for all hooks of a node that want this image, and safe in a unit's name."""
        text = f"{self.node}\0{self.reference}\0{self.kind}\0{self.private}"
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    @property
    def wanted_by(self) -> tuple[int, ...]:
        """The uids of all who want the image."""
        return (self.uid, *self.further)

    @property
    def shared(self) -> str:
        """Its repository, if the importer keeps the layers of that on the node; else the image itself."""
        if not choice.shares_layers(self.kind):
            return self.key
        parent, _, name = self.reference.partition("@")[0].rpartition("/")
        return f"{self.private}\0{parent}/{name.partition(':')[0]}"

    def is_expired(self, deadline_s: float) -> bool:
        """Return whether its time is over. So it is if it comes from the future: then the clock was wrong."""
        return not -CLOCK_SKEW <= time.time() - self.asked < deadline_s

    def is_due(self) -> bool:
        """Return whether the import may be started, if no process works on it."""
        return not 0 <= time.time() - self.tried < FIRST_BACKOFF_S * 2 ** (self.attempts - 1)

    def is_starting(self) -> bool:
        """Return whether a process may have been started that has not taken its lock yet."""
        return 0 <= time.time() - self.tried < STARTING_S


def is_key(text: str) -> bool:
    """Return whether a text has the form of a request's name."""
    return _KEY.match(text) is not None


def read(directory: str, key: str) -> ImportRequest | None:
    """Return a request; None if there is none, or it is damaged. Raises `OSError`."""
    try:
        return wire.from_object(ImportRequest, wire.parse(read_small(f"{directory}/{key}{REQUEST}", _LONGEST)))
    except (FileNotFoundError, ValueError):
        return None


def keys(directory: str) -> list[str]:
    """Return the names of all requests, damaged ones included."""
    names = (name.removesuffix(REQUEST) for name in names_in(directory) if name.endswith(REQUEST))
    return [key for key in names if is_key(key)]


def is_live(directory: str, key: str) -> bool:
    """Return whether a process works on a request."""
    return _is_locked(directory, key + LOCK)


def _is_locked(directory: str, name: str) -> bool:
    try:
        fd = os.open(f"{directory}/{name}", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not files.try_flock(fd, shared=True)
    finally:
        os.close(fd)


def submit(queue: Queue, request: ImportRequest) -> str:
    """Write a request, or add its user to the one that is there; return "", or why neither was done. Raises `OSError`.

    One whose time is over is made anew.
    """
    directory = queue.directory
    ensure_path(directory, 0o700)
    with _queue(directory):
        present = dict(_requests(directory))
        known = present.pop(request.key, None)
        if known is not None and not known.is_expired(queue.lifetime):
            if request.uid not in known.wanted_by and len(known.further) < MOST_FURTHER:
                turn = min(known.turn, _next_turn(request.uid, present))
                _write(directory, known._replace(further=(*known.further, request.uid), turn=turn))
            return ""
        own = sum(other.uid == request.uid for other in present.values())
        if own >= MOST_PER_USER:
            whose = f"user {request.user}" if request.user else "the policy"
            return f"{own} imports of {whose} wait on node {request.node} already"
        _write(directory, request._replace(turn=_next_turn(request.uid, present)))
    return ""


def _next_turn(uid: int, present: dict[str, ImportRequest]) -> int:
    """Return the turn of a user's new request: after its last one, and not before those that nobody has started."""
    own = max((request.turn + 1 for request in present.values() if request.uid == uid), default=0)
    return max(own, min((request.turn for request in present.values() if not request.attempts), default=0))


def start_due(queue: Queue) -> list[str]:
    """Start the imports whose turn it is, as many as there are slots; return their names. Raises `OSError`.

    A request that has died `MOST_ATTEMPTS` times is given up.
    """
    chosen: list[str] = []
    with _queue(queue.directory):
        waiting, working, at_work = [], [], _users_at_work(queue)
        for key, request in _requests(queue.directory):
            if is_live(queue.directory, key):
                working.append(request)
            elif request.is_starting():
                working.append(request)
                at_work.append(str(request.uid))
            elif request.is_due():
                waiting.append(request)
        fetched = {request.shared for request in working if 0 <= time.time() - request.tried < SAME_REPOSITORY_S}
        for request in _in_fair_order(waiting, working):
            if request.attempts >= MOST_ATTEMPTS:
                _give_up(queue.directory, request, f"its process has died {request.attempts} times")
            elif request.shared not in fetched and _has_place(request, at_work, queue.parallel):
                _write(queue.directory, request._replace(attempts=request.attempts + 1, tried=time.time()))
                chosen.append(request.key)
                at_work.append(str(request.uid))
                fetched.add(request.shared)
    for key in chosen:
        _start(queue.program, key)
    return chosen


def _in_fair_order(waiting: list[ImportRequest], working: list[ImportRequest]) -> list[ImportRequest]:
    before: dict[int, int] = {}
    for request in working:
        for uid in request.wanted_by:
            before[uid] = before.get(uid, 0) + 1
    ranked = []
    for request in sorted(waiting, key=lambda request: (request.asked, request.key)):
        for uid in request.wanted_by:
            before[uid] = before.get(uid, 0) + 1
        rank = min(before[uid] for uid in request.wanted_by)
        ranked.append((rank, request.turn, request.asked, request.key, request))
    return [request for *_, request in sorted(ranked)]


def _has_place(request: ImportRequest, at_work: list[str], parallel: int) -> bool:
    """Return whether an import may run beside those of the users `at_work`, each named once for each import."""
    if len(at_work) < parallel:
        return True
    is_extra_free = len(at_work) == parallel and len(set(at_work)) == 1
    return is_extra_free and any(str(uid) not in at_work for uid in request.wanted_by)


def _give_up(directory: str, request: ImportRequest, problem: str) -> None:
    error = ImportAbandoned(image=request.reference, node=request.node, problem=problem)
    remember_failure(directory, request.key, RememberedFailure.of(error))
    with opened_dir(directory) as fd:
        files.unlink_if_there(request.key + REQUEST, fd)


def _start(program: str, key: str) -> None:
    """Start the program for a request: as a unit of systemd, or detached from this process."""
    if os.path.isdir(SYSTEMD):
        from warmstart.host import process

        with suppress(WarmstartError):
            argv = [SYSTEMCTL, "start", "--no-block", UNIT.format(key=key)]
            if process.run(argv, deadline=after(SYSTEMCTL_S)).status == 0:
                return
    detached.start([program, key])


@contextmanager
def held(directory: str, key: str) -> Iterator[bool]:
    """Hold the lock of a request for a `with`; yield False if another process has it."""
    ensure_path(directory, 0o700)
    with opened_lock(directory, key + LOCK) as fd:
        # Whether it is held is probed with the same lock, which takes a moment.
        is_ours = files.wait_flock(fd, after(LOCK_S)) and files.is_at(fd, f"{directory}/{key}{LOCK}")
        try:
            if is_ours:
                with suppress(OSError):  # a full disk: it cannot be cancelled, only killed
                    os.ftruncate(fd, 0)
                    os.write(fd, str(os.getpid()).encode())
            yield is_ours
        finally:
            if is_ours and not os.path.exists(f"{directory}/{key}{REQUEST}"):
                with suppress(OSError):
                    os.unlink(f"{directory}/{key}{LOCK}")


@contextmanager
def slot(queue: Queue, request: ImportRequest) -> Iterator[bool]:
    """Hold a slot for a request's import for a `with`; yield False if it gets none."""
    deadline, taken = after(LOCK_S), _take_slot(queue, request)
    while taken < 0 and not deadline.expired():  # whether one is taken is probed with the same lock
        time.sleep(_PAUSE_S)
        taken = _take_slot(queue, request)
    try:
        yield taken >= 0
    finally:
        if taken >= 0:
            os.close(taken)


def _slots(queue: Queue) -> list[str]:
    """Return the names of all slots, with the one for another user."""
    return [f"slot-{number}" for number in range(queue.parallel + 1)]


def _users_at_work(queue: Queue) -> list[str]:
    """Return the uid of each import that has a slot; "" if that is not known."""
    return [_user_of(queue.directory, name) for name in _slots(queue) if _is_locked(queue.directory, name)]


def _user_of(directory: str, name: str) -> str:
    try:
        return read_small(f"{directory}/{name}", _LONGEST_UID).decode("ascii", "replace")
    except (OSError, ValueError):
        return ""


def _take_slot(queue: Queue, request: ImportRequest) -> int:
    with _queue(queue.directory):
        if not _has_place(request, _users_at_work(queue), queue.parallel):
            return -1
        return next((fd for name in _slots(queue) if (fd := _take(queue.directory, name, request.uid)) >= 0), -1)


def _take(directory: str, name: str, uid: int) -> int:
    fd = os.open(f"{directory}/{name}", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    if files.try_flock(fd):
        with suppress(OSError):  # a full disk: then it is nobody's
            os.ftruncate(fd, 0)
            os.write(fd, str(uid).encode())
        return fd
    os.close(fd)
    return -1


def put_back(directory: str, key: str, *, attempts: int) -> None:
    """Let the next one who asks start a request again at once; `attempts` is how many count. Raises `OSError`."""
    with _queue(directory):
        request = read(directory, key)
        if request is not None:
            _write(directory, request._replace(attempts=attempts, tried=0.0))


def drop(directory: str, key: str) -> None:
    """Remove a request. Its process, if there is one, goes on."""
    with _queue(directory), opened_dir(directory) as fd:
        files.unlink_if_there(key + REQUEST, fd)


def cancel(directory: str, key: str) -> bool:
    """Remove a request and end its import; return whether there was either. Those who wait are told."""
    known = os.path.exists(f"{directory}/{key}{REQUEST}")
    drop(directory, key)
    with suppress(OSError, ValueError):  # it has just ended, or just begun and will find no request
        pid = int(read_small(f"{directory}/{key}{LOCK}", _LONGEST))
        if is_live(directory, key):  # only then the id is that of a process at work
            os.kill(pid, signal.SIGTERM)
            return True
    return known


def remember_failure(directory: str, key: str, failure: RememberedFailure) -> None:
    """Write down for the hooks of this node how an import failed. Raises `OSError`."""
    data = json.dumps(failure._replace(at=time.time())._asdict()).encode()
    with opened_dir(directory) as fd:
        replace_file(fd, key + FAILED, data, 0o600, durable=False)


def last_failure(directory: str, key: str) -> RememberedFailure | None:
    """Return how the last import on this node failed; None if that is not known, or there was none."""
    try:
        return wire.from_object(RememberedFailure, wire.parse(read_small(f"{directory}/{key}{FAILED}", _LONGEST)))
    except (OSError, ValueError):
        return None


def failures(directory: str) -> list[RememberedFailure]:
    """Return how imports failed on this node, as far as that is remembered."""
    keys = sorted(name.removesuffix(FAILED) for name in names_in(directory) if name.endswith(FAILED))
    return [failure for key in keys if (failure := last_failure(directory, key)) is not None]


def forget_failures(directory: str, older_than_s: float) -> None:
    """Forget old failures, and what killed writers left. Raises `OSError`."""
    with suppress(FileNotFoundError), opened_dir(directory) as fd:
        files.remove_older(fd, time.time() - older_than_s, lambda name: name.endswith((FAILED, ".tmp")))


def abandon_expired(directory: str, deadline_s: float) -> list[ImportRequest]:
    """Remove the requests whose time is over and that nobody works on, and damaged ones; return the former."""
    expired = []
    with _queue(directory):
        for key in keys(directory):
            request = read(directory, key)
            if is_live(directory, key):
                continue
            if request is None:
                os.unlink(f"{directory}/{key}{REQUEST}")
            elif request.is_expired(deadline_s):
                _give_up(directory, request, EXPIRED)
                expired.append(request)
    return expired


def _requests(directory: str) -> Iterator[tuple[str, ImportRequest]]:
    for key in keys(directory):
        request = read(directory, key)
        if request is not None:
            yield key, request


def _write(directory: str, request: ImportRequest) -> None:
    with opened_dir(directory) as fd:
        replace_file(fd, request.key + REQUEST, json.dumps(request._asdict()).encode(), 0o600)


@contextmanager
def _queue(directory: str) -> Iterator[None]:
    """Hold the lock of the queue for a `with`; proceed without it if it stays held: it only saves work."""
    with opened_lock(directory, _QUEUE) as fd:
        files.wait_flock(fd, after(LOCK_S))
        try:
            yield
        finally:
            fcntl.flock(fd, fcntl.LOCK_UN)
