"""Attempts that only take time, by a clock of their own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import cast

import pytest

from warmstart.entry import background
from warmstart.paths import Installation, NodePaths
from warmstart.queue import Item, Kind, Queue

KIND = Kind("wishes", most=99, backoff_s=10.0)


class OwnProcesses:
    """A node whose attempts last as long as `lasts_s` says, and are done then."""

    def __init__(
        self,
        paths: NodePaths,
        lasts_s: Callable[[Item], float],
        patch: pytest.MonkeyPatch,
        kind: Kind = KIND,
    ) -> None:
        self.queue = Queue(paths, kind)
        self.now = time.time()
        self.ends: dict[int, tuple[float, Item]] = {}  # by pid
        self.begun: list[Item] = []
        self.done: dict[str, float] = {}  # key → when
        self.killed: list[str] = []
        self.installation = SimpleNamespace(is_off=False)
        self.each: Callable[[], object] = lambda: None  # is called after each look
        self._lasts_s = lasts_s
        self._paths, self._kind = paths, kind
        self.os = SimpleNamespace(
            environ={}, path=os.path, WNOHANG=1, posix_spawn=self.spawn, waitpid=self._wait, kill=self._kill
        )
        self.time = SimpleNamespace(monotonic=lambda: self.now, sleep=self._sleep)
        patch.setattr(background, "os", self.os)
        patch.setattr(background, "time", self.time)
        patch.setattr(time, "time", lambda: self.now)

    def run(self) -> None:
        """Begin attempts until none is left."""
        background._Attempts(cast(Installation, self.installation), self._paths, self._kind).run()

    def spawn(self, _program: str, argv: list[str], _environ: object) -> int:
        """Begin an item; return its pid."""
        found = self.queue.find(argv[-1])
        assert found
        item = self.queue.begin(found)
        assert item
        self.begun.append(item)
        pid = len(self.begun)
        self.ends[pid] = self.now + self._lasts_s(item), item
        return pid

    def _wait(self, pid: int, flags: int) -> tuple[int, int]:
        end, item = self.ends[pid]
        if flags and self.now < end:
            return 0, 0
        del self.ends[pid]
        self.done[item.key] = self.now
        self.queue.drop(item.key)
        return pid, 0

    def _kill(self, pid: int, _number: int) -> None:
        _, item = self.ends[pid]
        self.ends[pid] = self.now, item
        self.killed.append(item.key)

    def _sleep(self, seconds: float) -> None:
        before = self.queue.all()
        self.each()
        is_new = self.queue.all() != before
        self.now = max(self.now, self.now + seconds if is_new else min(end for end, _ in self.ends.values()))
