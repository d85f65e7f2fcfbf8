"""Deadlines: every wait has one (docs/architecture.md, rule 7)."""

from __future__ import annotations

import time
from typing import NamedTuple


class Deadline(NamedTuple):
    """A moment of `time.monotonic()`, seconds."""

    at: float

    def left(self) -> float:
        """Return the seconds that are left, never below zero."""
        return max(0.0, self.at - time.monotonic())

    def expired(self) -> bool:
        """Tell whether the moment has passed."""
        return time.monotonic() >= self.at

    def within(self, seconds: float) -> Deadline:
        """Return the earlier of this one and `seconds` from now."""
        return Deadline(min(self.at, time.monotonic() + seconds))


def after(seconds: float) -> Deadline:
    """Return the deadline `seconds` from now."""
    return Deadline(time.monotonic() + seconds)
