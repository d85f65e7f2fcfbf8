"""Deadlines. Every wait has one (docs/architecture.md, rule 7)."""

from __future__ import annotations

import time

from warmstart.lean import NamedTuple


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


def after(seconds: float) -> Deadline:
    """Return the deadline `seconds` from now."""
    return Deadline(time.monotonic() + seconds)
