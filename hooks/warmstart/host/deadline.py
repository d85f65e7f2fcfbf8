"""Deadlines. Every wait has one (docs/architecture.md, rule 7)."""

from __future__ import annotations

import os
import time

from warmstart.lean import Iterator, NamedTuple

FIRST_PAUSE_S = 0.02
SHORT_PAUSE_S = 0.25  # the longest in the first seconds,
PAUSE_SHARE = 0.05  # then this part of the time waited so far,
LONGEST_PAUSE_S = 5.0  # and never more than this; chance makes each up to half longer or shorter


class Deadline(NamedTuple):
    """A point in time, in seconds of `time.monotonic()`."""

    at: float

    def left(self) -> float:
        """Return the seconds left, never negative."""
        return max(0.0, self.at - time.monotonic())

    def expired(self) -> bool:
        """Return whether the deadline has passed."""
        return time.monotonic() >= self.at

    def within(self, seconds: float) -> Deadline:
        """Return the earlier of this deadline and `seconds` from now."""
        return Deadline(min(self.at, time.monotonic() + seconds))


_NEVER = Deadline(float("inf"))


def after(seconds: float) -> Deadline:
    """Return the deadline `seconds` from now."""
    return _NEVER.within(seconds)


def looks(until: Deadline) -> Iterator[None]:
    """Yield at each moment to look: at once, then with growing pauses, the last time at `until`.

    Whoever waits long looks seldom: a thousand nodes may wait for the same. A look comes late by a small part of the
    time that was waited already.
    """
    pause, began = FIRST_PAUSE_S, time.monotonic()
    yield
    while not until.expired():
        time.sleep(min(jittered(pause), until.left()))
        waited = time.monotonic() - began
        pause = min(pause * 1.5, max(SHORT_PAUSE_S, min(waited * PAUSE_SHARE, LONGEST_PAUSE_S)))
        yield


def jittered(pause: float) -> float:
    """Return a pause between half and one and a half of this one, so that many who wait do not look at once."""
    return pause * (0.5 + os.urandom(1)[0] / 256)
