"""Trees that this node is to pack off the clock of jobs (docs/adr/index.md, 48).

Prologs ask, `PACKS` are done and dropped in the background. A user has a bound, and users take turns, also those who
ask for one tree: nobody waits for another's process.
"""

from __future__ import annotations

import time

from warmstart.lean import TYPE_CHECKING, NamedTuple, sha256
from warmstart.policy.shared import SharedPath
from warmstart.queue import Asker, Item, Kind, Queue

if TYPE_CHECKING:
    from warmstart.paths import NodePaths

PACKS = Kind("packs", most=8, backoff_s=300.0)


class TreeRequest(NamedTuple):
    """What a prolog asks for. The owner is the user."""

    tree: str  # as the job names it
    marker: str
    scope: str  # that the copy is published in
    user: str
    uid: int
    gid: int
    cluster: str  # of the job that asked first
    job_id: int
    node: str
    shared: SharedPath | None = None  # of which the tree is, if it is not the user's own
    problem: str = ""  # of the last attempt
    refused: bool = False  # that is the tree's: nobody's attempt would do better

    def is_like(self, other: TreeRequest) -> bool:
        """Return whether a request is for the same copy."""
        return (self.scope, self.tree, self.marker) == (other.scope, other.tree, other.marker)

    @property
    def key(self) -> str:
        """The item's."""
        text = f"{self.scope}\0{self.uid}\0{self.tree}\0{self.marker}"
        return str(sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32])

    @property
    def asker(self) -> Asker:
        """The job that asked first."""
        return Asker(self.job_id, self.uid, self.user, self.cluster)


class Waiting(NamedTuple):
    """A request that waits, also while an attempt is under way."""

    item: Item
    request: TreeRequest
    next: int  # when the next attempt may begin, in seconds since the epoch; 0 for now

    def outlook(self) -> str:
        """Return what comes of it, for the job that asks: a copy, or why there is none, and when it is tried again."""
        if not self.next:
            return "a copy is packed in the background"
        again = f"after {clock(self.next)}"
        if self.request.problem:
            return f"it was not packed: {self.request.problem}; it is tried again {again}"
        return f"a pack of it began at {clock(self.item.tried(PACKS))}; another one may begin {again}"


def ask(paths: NodePaths, request: TreeRequest) -> Waiting | None:
    """Have a tree packed; return the request whose last attempt counts, another user's perhaps.

    None: its user has too many. Raises `OSError`.
    """
    queue = Queue(paths, PACKS)
    queue.forget_old()
    if not queue.find(request.key) and not queue.add(str(request.uid), request.key, request):
        return None
    known = waiting(paths)
    refused = [one for one in known if one.request.refused and one.next and one.request.is_like(request)]
    return next(iter(refused or [one for one in known if one.item.key == request.key]), None)


def waiting(paths: NodePaths) -> list[Waiting]:
    """Return all requests of a node; drop damaged ones. Raises `OSError`."""
    queue, found = Queue(paths, PACKS), []
    for item in queue.all():
        if request := queue.read(item, TreeRequest):
            found.append(Waiting(item, request, 0 if item.is_due() else item.due))
        else:
            queue.drop(item.key)
    return found


def due(paths: NodePaths) -> list[Waiting]:
    """Return the requests of which an attempt may begin, without those like one that was just refused.

    Raises `OSError`.
    """
    known = waiting(paths)
    refused = [one.request for one in known if one.request.refused and one.next]
    return [one for one in known if not one.next and not any(map(one.request.is_like, refused))]


def is_refused(paths: NodePaths, request: TreeRequest) -> bool:
    """Return whether one like it was just refused. Raises `OSError`."""
    others = (one for one in waiting(paths) if one.item.key != request.key)
    return any(one.request.refused and one.next and one.request.is_like(request) for one in others)


def start_due(paths: NodePaths) -> None:
    """Start the program that packs, if an attempt is due."""
    if due(paths):
        Queue(paths, PACKS).start()


def clock(at: float) -> str:
    """Return a time as jobs are told it."""
    return time.strftime("%H:%M UTC", time.gmtime(at))
