"""`background KIND [NODE [KEY]]`: make attempts at what waits in a queue (`warmstart.queue`). Runs as root, for no job.

One process of a node begins the attempts of a kind, each in a process of its own, until none is at work or due. Next is
the owner who has the fewest at work; of these the one whose last one began longest ago, or never; of an owner's items
the oldest. If several may be at work, and all that are belong to one owner while another one waits, one more begins:
none is ended before its time. What is withdrawn gets SIGTERM, and so does all if this process gets it.

A process may die at any point: what it was at still waits, and its attempt is counted. Hooks start the program
detached, or systemd does (`host.detached`); without a node it is for all nodes of this host.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import Counter
from contextlib import suppress
from types import ModuleType
from typing import NoReturn

from warmstart import wing
from warmstart.errors import WarmstartError
from warmstart.host import process
from warmstart.keeper import NodeOfAnotherPod, require_keeper
from warmstart.paths import Installation, NodePaths
from warmstart.queue import DONE, LATER, MORE, Item, Kind, Outcome, Queue, at_work
from warmstart.session import Session, open_session

FAILED, WRONG_USAGE = 1, 2
LOCK_S = 1.0  # hooks probe the lock, which takes a moment
LOOK_S = 0.2
# Kind → the module with its `KIND` and `attempt`.
_CORE = {
    "endings": "warmstart.attempts.endings",
    "live": "warmstart.attempts.live",
    "imports": "warmstart.attempts.imports",
    "unpacks": "warmstart.attempts.unpacks",
}


def kinds() -> dict[str, str]:
    """Return the modules of all kinds: the core's, and those of the wings that are here. Never on a warm path."""
    return _CORE | {it.queue: f"warmstart.wings.{name}.attempts" for name, it in wing.found().items() if it.queue}


def load(kind: str) -> ModuleType:
    """Return the module of a kind; nothing is loaded for others."""
    module = kinds()[kind]
    __import__(module)
    return sys.modules[module]


def main(prefix: str, arguments: list[str]) -> int:
    """Do what waits on a node, or on each; what fails on one stops no other. Return the exit status."""
    installation = Installation(prefix)
    kind, node, key = [*arguments, "", "", ""][:3]
    try:
        nodes = installation.nodes()
    except OSError as error:
        return _failed(error)
    if kind not in kinds() or (node and node not in nodes):
        print(f"usage: background {'|'.join(kinds())} [NODE [KEY]]", file=sys.stderr)  # noqa: T201 - who calls it
        return WRONG_USAGE
    module, status = load(kind), 0
    for name in [node] if node else nodes:
        try:
            if key:
                _attempt(installation, module, name, key)
            else:
                make_attempts(installation, name, module.KIND)
        except (WarmstartError, OSError) as error:  # of this node's disk; all that waits stays
            status = _failed(error)
    return status


def _failed(error: WarmstartError | OSError) -> int:
    """Say so to who calls it by hand; return the exit status."""
    hint = f" ({error.hint})" if isinstance(error, WarmstartError) else ""
    print(f"warmstart: {error}{hint}", file=sys.stderr)  # noqa: T201
    return FAILED


def make_attempts(installation: Installation, node: str, kind: Kind) -> None:
    """Have the attempts of a kind made that are due on a node, unless another process is at it, or another pod's.

    Raises `OSError`.
    """
    paths = installation.node(node)
    with suppress(NodeOfAnotherPod):
        require_keeper(paths, node)
        with at_work(paths, kind.name, LOCK_S) as is_ours:
            if is_ours:
                _Attempts(installation, paths, kind).run()


def _attempt(installation: Installation, module: ModuleType, node: str, key: str) -> None:
    """Make one attempt in this process, if its item is still there. Raises `OSError` and the errors of a session."""
    kind: Kind = module.KIND
    if kind.is_idle:
        process.be_idle()
    if installation.is_off and not kind.while_off:
        return
    outcome = LATER
    with open_session(installation, kind.hook, node) as session, session.isolated(f"{kind.name}: {key}"):
        outcome = attempt(session, module, key)
    if outcome == DONE:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it looks withdrawn as soon as it is dropped
        Queue(installation.node(node), kind).drop(key)


def attempt(session: Session, module: ModuleType, key: str) -> Outcome:
    """Make one attempt, if its item is still there. The caller drops what is done. Raises what the attempt raises."""
    queue = Queue(session.paths, module.KIND)
    item = queue.find(key)
    begun = queue.begin(item) if item else None
    if item is None or begun is None:
        return LATER
    outcome: Outcome = module.attempt(session, begun)
    if outcome == MORE:
        queue.go_on(begun)
    return outcome


class _Attempts:
    """The attempts of one kind on one node."""

    def __init__(self, installation: Installation, paths: NodePaths, kind: Kind) -> None:
        self._installation = installation
        self._program = paths.background_program
        self._node = paths.node
        self._kind = kind
        self._queue = Queue(paths, kind)
        self._at_work: dict[int, Item] = {}  # by pid
        self._last: dict[str, float] = {}  # when each owner's last one began
        self._again: dict[Item, float] = {}  # when it may begin again if its process has not counted an attempt

    def run(self) -> None:
        self._queue.forget_old()
        former = signal.signal(signal.SIGTERM, self._end)
        try:
            while self._look():
                time.sleep(LOOK_S)
        finally:
            for pid in self._at_work:
                os.waitpid(pid, 0)
            signal.signal(signal.SIGTERM, former)

    def _end(self, number: int, _frame: object) -> NoReturn:
        for pid in self._at_work:
            os.kill(pid, signal.SIGTERM)
        raise SystemExit(128 + number)

    def _look(self) -> bool:
        """Begin what may begin; return whether anything is at work."""
        waiting = {item.key for item in self._queue.all()}
        for pid, item in [*self._at_work.items()]:
            if os.waitpid(pid, os.WNOHANG)[0]:
                del self._at_work[pid]
            elif item.key not in waiting and self._queue.find(item.key) is None:  # it may be renamed
                os.kill(pid, signal.SIGTERM)
        while (self._kind.while_off or not self._installation.is_off) and (following := self._next()) is not None:
            self._begin(following)
        return bool(self._at_work)

    def _next(self) -> Item | None:
        owners = Counter(item.owner for item in self._at_work.values())
        things = {_thing(item) for item in self._at_work.values()}
        most, now = self._kind.parallel, time.monotonic()

        def may_begin(item: Item) -> bool:
            is_other = most > 1 and len(owners) == 1 and item.owner not in owners
            has_room = len(self._at_work) < most + is_other
            return has_room and now >= self._again.get(item, 0.0) and _thing(item) not in things

        may = filter(may_begin, self._queue.due())
        return min(may, key=lambda e: (owners[e.owner], self._last.get(e.owner, 0), e.attempts, e.due), default=None)

    def _begin(self, item: Item) -> None:
        pid = os.posix_spawn(self._program, [self._program, self._kind.name, self._node, item.key], os.environ)
        self._at_work[pid] = item
        self._last[item.owner] = now = time.monotonic()
        self._again[item] = now + self._kind.backoff_s


def _thing(item: Item) -> str:
    """Return what an item is about, of which one attempt is made at a time: an image, a run's job."""
    return item.key.partition(".")[0]
