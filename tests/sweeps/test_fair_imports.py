"""How long users wait for their images on one node beside a user whose imports last until their deadline.

The queue of requests is the real one; only the time is made up, and nothing is imported. `-o log_cli=1
--log-cli-level=INFO` shows the waits.
"""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from warmstart.images.imports import requests
from warmstart.images.imports.requests import MOST_PER_USER, ImportRequest
from warmstart.images.query import Queue

USERS = 7  # besides the hostile one
HOSTILE, FIRST = 2000, 2001  # uids
IMPORT_S, DEADLINE_S = 300.0, 7200


class Waits(NamedTuple):
    """Seconds from a user's request to the end of its import."""

    first: float  # of all users' first images, the longest
    middle: float  # of all images
    last: float


class Node:
    """One node's queue, by a clock of its own."""

    def __init__(self, directory: Path, parallel: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = time.time()
        self._queue = Queue(str(directory), "/nowhere", parallel, 100 * DEADLINE_S)
        self._at_work: dict[str, tuple[float, ExitStack]] = {}  # key → end, its locks
        self._asked: dict[str, ImportRequest] = {}
        self.waits: dict[int, list[float]] = {}
        monkeypatch.setattr(requests, "_start", lambda _program, key: self._begin(key))
        monkeypatch.setattr(time, "time", lambda: self.now)

    def ask(self, uid: int) -> None:
        """Ask for as many images as a user may."""
        for number in range(MOST_PER_USER):
            reference = f"reg.io/u{uid}/{number}:1"
            request = ImportRequest(
                reference, "x86_64.oci1", "", f"u{uid}", uid, "", "c", "n1", number, "r", self.now + number / 1000
            )
            assert requests.submit(self._queue, request) == ""
            self._asked[request.key] = request

    def run(self) -> None:
        """Let imports run until all are done but those of the hostile user."""
        while any(request.uid != HOSTILE for request in self._asked.values()):
            requests.start_due(self._queue)
            key, (end, locks) = min(self._at_work.items(), key=lambda item: item[1][0])
            self.now = end
            del self._at_work[key]
            request = self._asked.pop(key)
            self.waits.setdefault(request.uid, []).append(end - request.asked)
            requests.drop(self._queue.directory, key)
            locks.close()
        for _, locks in self._at_work.values():
            locks.close()

    def _begin(self, key: str) -> None:
        request, locks = self._asked[key], ExitStack()
        assert locks.enter_context(requests.held(self._queue.directory, key))
        assert locks.enter_context(requests.slot(self._queue, request))
        self._at_work[key] = self.now + (DEADLINE_S if request.uid == HOSTILE else IMPORT_S), locks


def waits(directory: Path, parallel: int, monkeypatch: pytest.MonkeyPatch, *, hostile: bool) -> Waits:
    """Return how long the users wait who are not hostile. A hostile one asks first, and has all slots."""
    with monkeypatch.context() as patch:
        node = Node(directory, parallel, patch)
        for uid in [HOSTILE] * hostile + list(range(FIRST, FIRST + USERS)):
            node.ask(uid)
            requests.start_due(node._queue)
        node.run()
    ends = sorted(wait for uid, own in node.waits.items() if uid != HOSTILE for wait in own)
    assert len(ends) == USERS * MOST_PER_USER
    firsts = [min(own) for uid, own in node.waits.items() if uid != HOSTILE]
    return Waits(max(firsts), ends[len(ends) // 2], ends[-1])


@pytest.mark.sweep
@pytest.mark.threat(38)
@pytest.mark.parametrize("parallel", [1, 2, 4])
def test_eight_users_one_of_them_hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parallel: int) -> None:
    """Sixteen images each. Beside the hostile one at least one import of the others runs at any time."""
    alone = waits(tmp_path / "alone", parallel, monkeypatch, hostile=False)
    beside = waits(tmp_path / "beside", parallel, monkeypatch, hostile=True)
    logging.getLogger(__name__).info(
        "images.parallel %d: alone %s, beside the hostile user %s", parallel, alone, beside
    )
    assert beside.first <= USERS * IMPORT_S + 1
    assert beside.last <= USERS * MOST_PER_USER * IMPORT_S + 1
