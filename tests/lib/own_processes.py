"""Errands' own processes that only take time, by a clock of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from warmstart.errand import Errand, Errands, Kind
from warmstart.errands import processes
from warmstart.errands.loop import DONE, Apart, Work
from warmstart.paths import NodePaths
from warmstart.session import Session

KIND = Kind("wishes", most=99, backoff_s=10.0)


class OwnProcesses:
    """A node whose errands last as long as `lasts_s` says, and are done then."""

    def __init__(
        self,
        paths: NodePaths,
        apart: Apart,
        lasts_s: Callable[[Errand], float],
        patch: pytest.MonkeyPatch,
        kind: Kind = KIND,
    ) -> None:
        self.errands = Errands(paths, kind)
        self.now = time.time()
        self.ends: dict[int, tuple[float, Errand]] = {}  # by pid
        self.begun: list[Errand] = []
        self.done: dict[str, float] = {}  # key → when
        self.killed: list[str] = []
        self.installation = SimpleNamespace(is_off=False)
        self.each: Callable[[], object] = lambda: None  # is called after each look
        self._lasts_s = lasts_s
        self._session = cast(Session, SimpleNamespace(paths=paths, node="n1", installation=self.installation))
        self._work = Work(kind, lambda _: DONE, apart=apart)
        self._apart = apart
        self.os = SimpleNamespace(environ={}, WNOHANG=1, posix_spawn=self.spawn, waitpid=self._wait, kill=self._kill)
        self.time = SimpleNamespace(monotonic=lambda: self.now, sleep=self._sleep)
        patch.setattr(processes, "os", self.os)
        patch.setattr(processes, "time", self.time)
        patch.setattr(time, "time", lambda: self.now)

    def run(self) -> None:
        """Begin errands until none is left."""
        processes.run(self._session, self._work, self._apart)

    def spawn(self, _program: str, argv: list[str], _environ: object) -> int:
        """Begin an errand; return its pid."""
        found = self.errands.find(argv[-1])
        assert found
        errand = self.errands.begin(found)
        assert errand
        self.begun.append(errand)
        pid = len(self.begun)
        self.ends[pid] = self.now + self._lasts_s(errand), errand
        return pid

    def _wait(self, pid: int, flags: int) -> tuple[int, int]:
        end, errand = self.ends[pid]
        if flags and self.now < end:
            return 0, 0
        del self.ends[pid]
        self.done[errand.key] = self.now
        self.errands.drop(errand.key)
        return pid, 0

    def _kill(self, pid: int, _number: int) -> None:
        _, errand = self.ends[pid]
        self.ends[pid] = self.now, errand
        self.killed.append(errand.key)

    def _sleep(self, seconds: float) -> None:
        before = self.errands.all()
        self.each()
        is_new = self.errands.all() != before
        self.now = max(self.now, self.now + seconds if is_new else min(end for end, _ in self.ends.values()))


def apart(most: int, of: Callable[[str], str] = str) -> Apart:
    """Return how errands are done side by side."""
    return Apart("wish", most, of)
