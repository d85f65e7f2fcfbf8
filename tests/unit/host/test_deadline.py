"""Deadlines, and when to look again until one."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest

from warmstart.host import deadline
from warmstart.host.deadline import after


def test_who_waits_long_looks_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand nodes may wait: some hundred looks in four minutes, close together only at first, none too late."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(time, "sleep", lambda seconds: now.__setitem__(0, now[0] + seconds))
    looks = [now[0] - 100 for _ in deadline.looks(after(240))]
    gaps = [later - earlier for earlier, later in pairwise(looks)]
    assert 60 < len(looks) < 180
    assert (looks[0], looks[-1]) == (0, 240)
    assert all(gap <= max(0.4, look * 0.08) for gap, look in zip(gaps, looks[1:], strict=True))
    assert max(gaps) <= 1.5 * deadline.LONGEST_PAUSE_S
