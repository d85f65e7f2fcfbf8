"""The loop that does errands of one kind, and what a kind registers with (`registry`). Runs as root, for no job.

One process of a node does a kind at a time. Owners take turns by the time that theirs have taken, and so do the errands
of an owner: nobody's small one waits for another's large ones. An errand that fails has no other turn in this process,
and keeps no other. A process may die at any point: what it was at still waits, and its attempt is counted.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple

from warmstart.errand import Errand, Errands, Kind, at_work
from warmstart.host.identity import WorkerSilent
from warmstart.paths import NodePaths
from warmstart.session import Session

Outcome = Literal["done", "later", "more"]
DONE: Outcome = "done"  # nothing of it is left
LATER: Outcome = "later"  # it stays for another process
MORE: Outcome = "more"  # it goes on when its owner's turn comes again


class Turn(NamedTuple):
    """An errand's turn."""

    session: Session
    errand: Errand
    left_s: float  # that its owner has in this process


def waiting_here(session: Session, kind: Kind) -> list[Errand]:
    """Return what is due on this node, and forget what is old."""
    errands = Errands(session.paths, kind)
    errands.forget_old()
    return errands.due()


class Apart(NamedTuple):
    """How a process of its own does each errand of a kind, a few at a time (`processes`)."""

    hook: str  # of its events
    most: int  # at a time
    of: Callable[[str], str]  # what an errand is about, by its key: of these one at a time is at work


class Work(NamedTuple):
    """How errands of a kind are done."""

    kind: Kind
    do: Callable[[Turn], Outcome]
    due: Callable[[Session, Kind], Sequence[Errand]] = waiting_here  # others wait elsewhere than on this node
    enter: Callable[[Session], bool] = lambda _: True  # with the node's lock; returns whether to go on
    owner_s: float = math.inf  # after which no further errand of an owner begins in this process
    step: str = "maintenance"  # that failures are audited under
    while_off: bool = False  # whether it is done while warmstart is off, too
    by_maintenance: bool = True  # which otherwise starts the program: it takes longer than maintenance may
    patience_s: float = 0.0  # of maintenance, with a process that is at it
    apart: Apart | None = None  # None: one process does all
    sees: Callable[[NodePaths], Sequence[Errand]] | None = None  # `due` without a session, to begin none for nothing


def run(session: Session, work: Work, patience_s: float = 0.0) -> int:
    """Do the errands of a kind that are due, unless another process is at it; return how many are done."""
    done, over = 0, set[str]()
    owners: dict[str, float] = {}  # seconds that each has had
    had: dict[str, float] = {}  # … each errand
    with at_work(session.paths, work.kind.name, patience_s) as is_ours:
        if not is_ours or not work.enter(session):
            return 0
        while due := [
            errand
            for errand in work.due(session, work.kind)
            if errand.key not in over and owners.get(errand.owner, 0.0) < work.owner_s
        ]:
            errand = min(due, key=lambda errand: (owners.get(errand.owner, 0.0), had.get(errand.key, 0.0)))
            began, outcome = time.monotonic(), LATER
            with session.isolated(f"{work.kind.name} of {errand.key}", step=work.step):
                try:
                    outcome = _turn(work, Turn(session, errand, work.owner_s - owners.get(errand.owner, 0.0)))
                except WorkerSilent:  # its owner's process does not answer, and would not for others
                    owners[errand.owner] = math.inf
                    raise
            took = time.monotonic() - began
            owners[errand.owner] = owners.get(errand.owner, 0.0) + took
            had[errand.key] = had.get(errand.key, 0.0) + took
            done += outcome == DONE
            if outcome != MORE:
                over.add(errand.key)
    return done


def one(session: Session, work: Work, key: str) -> None:
    """Do one errand, if it is still there. This process is to end then."""

    def do(turn: Turn) -> Outcome:
        try:
            return work.do(turn)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # `processes` takes it for withdrawn as soon as it is dropped

    errand = Errands(session.paths, work.kind).find(key)
    if errand is not None:
        with session.isolated(f"{work.kind.name} of {key}", step=work.step):
            _turn(work._replace(do=do), Turn(session, errand, work.owner_s))


def _turn(work: Work, turn: Turn) -> Outcome:
    errands, before = Errands(turn.session.paths, work.kind), turn.errand
    if work.kind.backoff_s:
        begun = errands.begin(turn.errand)
        if begun is None:  # withdrawn
            return LATER
        turn = turn._replace(errand=begun)
    outcome = work.do(turn)
    if outcome == DONE:
        errands.drop(turn.errand.key)
    elif outcome == MORE:
        errands.go_on(turn.errand, before)
    return outcome
