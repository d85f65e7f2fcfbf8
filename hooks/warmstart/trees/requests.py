"""Trees that this node is to pack off the clock of jobs (docs/adr/0048).

    <node>/trees/                       root, 0700
        KEY.json                        one tree of one user (`TreeRequest`)
        stage/  packed.sqsh             while it is packed; one at a time on a node

Prologs write requests; `entry.background` packs and removes them. A prolog may die at any point: whoever finds that an
attempt is due starts the program. A tree that could not be packed waits ever longer, and a day after the last attempt
it may be asked for anew. A user has at most `MOST_PER_USER`. Users take turns, also those who ask for one tree: nobody
waits for another's process.
"""

from __future__ import annotations

import os
import time

from warmstart.host import wire
from warmstart.host.files import ensure_dir, names_in, opened_dir, read_small, replace_file, unlink_if_there
from warmstart.lean import TYPE_CHECKING, NamedTuple, dumps, sha256
from warmstart.policy.match import GrantedTree

if TYPE_CHECKING:
    from warmstart.paths import NodePaths

PACKS = "packs"  # what `entry.background` is told to do
MOST_PER_USER = 8
FIRST_BACKOFF_S = 300.0  # after an attempt that failed; doubled after each further one
KEPT_S = 86_400.0  # after the last attempt
SUFFIX = ".json"
_LONGEST = 64 << 10


class TreeRequest(NamedTuple):
    """What a prolog asks for. Times are in seconds since the epoch."""

    tree: str  # as the job names it
    marker: str
    scope: str  # that the copy is published in
    user: str
    uid: int
    gid: int
    cluster: str  # of the job that asked first
    job_id: int
    node: str
    asked: float
    attempts: int = 0  # that were begun
    tried: float = 0.0  # when the last one was begun
    shared: GrantedTree | None = None  # of which the tree is, if it is not the user's own
    problem: str = ""  # of the last attempt
    refused: bool = False  # that is the tree's: nobody's attempt would do better

    def is_like(self, other: TreeRequest) -> bool:
        """Return whether a request is for the same copy."""
        return (self.scope, self.tree, self.marker) == (other.scope, other.tree, other.marker)

    @property
    def key(self) -> str:
        """Its name."""
        text = f"{self.scope}\0{self.uid}\0{self.tree}\0{self.marker}"
        return str(sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32])

    @property
    def job_labels(self) -> dict[str, object]:
        """The job, for `Journal.for_job`."""
        return {"job_id": self.job_id, "uid": self.uid, "user": self.user, "cluster": self.cluster}

    def is_due(self) -> bool:
        """Return whether the next attempt may begin."""
        return not 0 <= time.time() - self.tried < self.next_attempt - self.tried

    @property
    def next_attempt(self) -> float:
        """When the next attempt may begin, if there was one."""
        return self.tried + FIRST_BACKOFF_S * 2.0 ** (self.attempts - 1)

    def is_old(self) -> bool:
        """Return whether it is forgotten."""
        return not -KEPT_S < time.time() - max(self.asked, self.tried) < KEPT_S

    def outlook(self) -> str:
        """Return what comes of it, for the job that asks: a copy, or why there is none, and when it is tried again."""
        if self.is_due():
            return "a copy is packed in the background"
        again = f"after {_clock(self.next_attempt)}"
        if self.problem:
            return f"it was not packed: {self.problem}; it is tried again {again}"
        return f"a pack of it began at {_clock(self.tried)}; another one may begin {again}"


def ask(paths: NodePaths, request: TreeRequest) -> TreeRequest | None:
    """Have a tree packed; return the request whose last attempt counts, another user's perhaps.

    None: its user has too many. Raises `OSError`.
    """
    ensure_dir(paths.trees, 0o700)
    with opened_dir(paths.trees) as fd:
        known = {other.key: other for other in _all(fd) if not other.is_old()}
        if request.key not in known:
            if sum(other.uid == request.uid for other in known.values()) >= MOST_PER_USER:
                return None
            write(fd, request)
    refused = [other for other in known.values() if other.refused and other.is_like(request) and not other.is_due()]
    return (refused or [known.get(request.key, request)])[0]


def renew(paths: NodePaths, request: TreeRequest) -> None:
    """Have a tree packed, at once, whatever came of earlier attempts. Raises `OSError`."""
    ensure_dir(paths.trees, 0o700)
    with opened_dir(paths.trees) as fd:
        write(fd, request)


def withdraw(paths: NodePaths, request: TreeRequest) -> None:
    """Have a tree packed no longer; a pack that is under way goes on. Raises `OSError`."""
    with opened_dir(paths.trees) as fd:
        forget(fd, request)


def waiting(paths: NodePaths) -> list[TreeRequest]:
    """Return all requests of a node, also those of which an attempt is under way. Raises `OSError`."""
    if not names_in(paths.trees):
        return []
    with opened_dir(paths.trees) as fd:
        return sorted(_all(fd), key=lambda request: (request.asked, request.key))


def write(dir_fd: int, request: TreeRequest) -> None:
    """Write what is known of a request. Raises `OSError`."""
    replace_file(dir_fd, request.key + SUFFIX, dumps(request._asdict()).encode(), 0o600)


def forget(dir_fd: int, request: TreeRequest) -> None:
    """Remove a request. Raises `OSError`."""
    unlink_if_there(request.key + SUFFIX, dir_fd)


def due(paths: NodePaths) -> list[TreeRequest]:
    """Return the requests of which an attempt is due, oldest first; forget old ones. Raises `OSError`."""
    requests = waiting(paths)
    for request in filter(TreeRequest.is_old, requests):
        withdraw(paths, request)
    refused = [request for request in requests if request.refused and not request.is_due()]
    return [
        request
        for request in requests
        if request.is_due() and not request.is_old() and not any(map(request.is_like, refused))
    ]


def start_due(paths: NodePaths) -> None:
    """Start the program that packs, if an attempt is due; another process of it that is at work goes on alone."""
    from warmstart.host import detached

    if due(paths):
        detached.start([paths.background_program, PACKS, os.path.basename(paths.root)])


def _clock(at: float) -> str:
    return time.strftime("%H:%M UTC", time.gmtime(at))


def _all(dir_fd: int) -> list[TreeRequest]:
    found = []
    for name in os.listdir(dir_fd):
        if name.endswith(SUFFIX) and not name.startswith("."):
            try:
                found.append(wire.from_object(TreeRequest, wire.parse(read_small(name, _LONGEST, dir_fd))))
            except ValueError:  # damaged
                unlink_if_there(name, dir_fd)
            except FileNotFoundError:
                continue
    return found
