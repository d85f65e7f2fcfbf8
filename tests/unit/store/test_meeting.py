"""How a node waits for the head node of its job."""

from __future__ import annotations

import time

import pytest

from tests.support.runs import a_record
from warmstart.host.deadline import Deadline, after
from warmstart.host.identity import Identity
from warmstart.store import meeting
from warmstart.store.agreement import Place, Whose
from warmstart.store.client import StoreClient
from warmstart.store.meeting import HeadSilent, Meeting

MEETING = Meeting("c.7.0", "n[1-2]")


def test_its_place_is_the_runs() -> None:
    """Told from that of another job of the same id by user, cluster and nodes."""
    store = StoreClient(Identity("nobody", 65534, 65534), "/store", "n2-0a1b2c3d")
    record = a_record()
    assert MEETING.place(store, record) == Place(
        "/store", "c.7.0", "n2-0a1b2c3d", Whose(record.uid, record.cluster, "n[1-2]")
    )


def test_it_looks_until_there_is_something() -> None:
    """Or until its time is over."""
    store = StoreClient(Identity("nobody", 65534, 65534), "/store", "n2-0a1b2c3d")
    seen = iter([None, None, "a word"])
    assert MEETING.awaited(store, lambda _: next(seen), after(5), "said nothing") == "a word"
    assert not store.head_silent
    with pytest.raises(HeadSilent, match="the head node n1 has said nothing within 0 s"):
        MEETING.awaited(store, lambda _: None, after(0.1), "said nothing")
    assert store.head_silent


def test_who_waits_long_looks_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, often in the first seconds, every five seconds at the end: a thousand nodes may wait for minutes."""
    now = 0.0
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds
        pauses.append(seconds)

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert sum(1 for _ in meeting.looks(Deadline(240.0))) == len(pauses) + 1
    assert max(pauses[:10]) <= meeting.SHORT_PAUSE_S
    assert pauses[-2] == meeting.LONGEST_PAUSE_S
    assert len(pauses) < 120
