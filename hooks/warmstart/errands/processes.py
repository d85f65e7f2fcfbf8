"""Errands that a process of its own does each, a few at a time. Runs as root, for no job.

One process of a node begins those of a kind, in fair order: next is the owner who has the fewest at work; of these the
one whose last one began longest ago, or never; of an owner's errands the oldest. If all that are at work are one
owner's while another one waits, one more begins: none is ended before its time.

It ends when nothing is at work, nor due. An errand that is withdrawn gets SIGTERM, and all do if this process gets it.
If this process is killed the others go on, and are not counted any more.
"""

from __future__ import annotations

import os
import signal
import time
from collections import Counter
from itertools import count
from typing import NoReturn

from warmstart.errand import Errand, Errands, at_work
from warmstart.errands.loop import Apart, Work
from warmstart.session import Session

LOCK_S = 1.0  # hooks probe the lock, which takes a moment
LOOK_S = 0.2


def run(session: Session, work: Work, apart: Apart) -> None:
    """Have the errands of a kind done until none is due, unless another process is at it."""
    with at_work(session.paths, work.kind.name, LOCK_S) as is_ours:
        if is_ours:
            _Processes(session, work, apart).run()


class _Processes:
    def __init__(self, session: Session, work: Work, apart: Apart) -> None:
        self._session = session
        self._work = work
        self._apart = apart
        self._errands = Errands(session.paths, work.kind)
        self._at_work: dict[int, Errand] = {}  # by pid
        self._turns = count(1)
        self._last: dict[str, int] = {}  # the turn of each owner's last one
        self._again: dict[Errand, float] = {}  # when it may begin again if its process has not counted an attempt

    def run(self) -> None:
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
        waiting = {errand.key for errand in self._errands.all()}
        for pid, errand in [*self._at_work.items()]:
            if os.waitpid(pid, os.WNOHANG)[0]:
                del self._at_work[pid]
            elif errand.key not in waiting and self._errands.find(errand.key) is None:  # it may be renamed
                os.kill(pid, signal.SIGTERM)
        while not self._session.installation.is_off and (following := self._next()) is not None:
            self._begin(following)
        return bool(self._at_work)

    def _next(self) -> Errand | None:
        owners = Counter(errand.owner for errand in self._at_work.values())
        about = {self._apart.of(errand.key) for errand in self._at_work.values()}
        most, now = self._apart.most, time.monotonic()

        def may_begin(errand: Errand) -> bool:
            is_other = len(owners) == 1 and errand.owner not in owners
            return (
                len(self._at_work) < most + is_other
                and now >= self._again.get(errand, 0.0)
                and self._apart.of(errand.key) not in about
            )

        may = filter(may_begin, self._work.due(self._session, self._work.kind))
        return min(may, key=lambda e: (owners[e.owner], self._last.get(e.owner, 0), e.due), default=None)

    def _begin(self, errand: Errand) -> None:
        program = self._session.paths.background_program
        pid = os.posix_spawn(program, [program, self._work.kind.name, self._session.node, errand.key], os.environ)
        self._at_work[pid] = errand
        self._last[errand.owner] = next(self._turns)
        self._again[errand] = time.monotonic() + self._work.kind.backoff_s
