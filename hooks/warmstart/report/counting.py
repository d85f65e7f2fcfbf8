"""Counting in bounded memory: the most frequent names, and quantiles of durations. And counts in words."""

from __future__ import annotations

import math
from collections import Counter
from typing import Generic, NamedTuple, TypeVar

MOST_NAMES = 4096
PER_DECADE = 40  # classes of durations; a quantile is exact to 3 %
SHORTEST = 1e-4  # seconds; shorter durations count as this
OTHERS = "(others)"

_Key = TypeVar("_Key", str, tuple[str, ...])


def counted(number: int, noun: str) -> str:
    """Return a number of things: `1 user`, `2,000 users`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


def percent(part: int, whole: int) -> str:
    """Return a share: `12.5%`; `-` of nothing."""
    return f"{100 * part / whole:.1f}%" if whole else "-"


class Tally(Generic[_Key]):
    """Numbers by name. Beyond `MOST_NAMES` names the smaller half is added to `others`."""

    def __init__(self, most: int = MOST_NAMES) -> None:
        self._most = most
        self._found: Counter[_Key] = Counter()
        self.others = 0

    def add(self, name: _Key, count: int = 1) -> None:
        """Add to the number of a name."""
        self._found[name] += count
        if len(self._found) > self._most:
            kept = self._found.most_common(self._most // 2)
            self.others += self._found.total() - sum(count for _, count in kept)
            self._found = Counter(dict(kept))

    def items(self) -> list[tuple[_Key, int]]:
        """Return the names with their numbers, the largest first."""
        return sorted(self._found.items(), key=lambda item: (-item[1], item[0]))

    def __len__(self) -> int:
        return len(self._found)


def top(tally: Tally[str], most: int) -> list[tuple[str, int]]:
    """Return the largest numbers with their names, then the rest as `OTHERS` if there is any."""
    ordered = tally.items()
    rest = tally.others + sum(count for _, count in ordered[most:])
    return [*ordered[:most], *([(OTHERS, rest)] if rest else [])]


class Times(NamedTuple):
    """How long something took, in seconds."""

    number: int
    p50: float
    p95: float
    p99: float
    longest: float


class Durations:
    """A histogram of seconds with logarithmic classes."""

    def __init__(self) -> None:
        self._classes: dict[int, int] = {}
        self.count = 0
        self.total = 0.0
        self.longest = 0.0

    def add(self, seconds: float) -> None:
        """Count a duration."""
        number = math.floor(math.log10(max(seconds, SHORTEST)) * PER_DECADE)
        self._classes[number] = self._classes.get(number, 0) + 1
        self.count += 1
        self.total += seconds
        self.longest = max(self.longest, seconds)

    @property
    def mean(self) -> float:
        """The mean duration; 0.0 if there is none."""
        return self.total / self.count if self.count else 0.0

    def times(self) -> Times:
        """Return what these are like."""
        return Times(self.count, self.quantile(0.5), self.quantile(0.95), self.quantile(0.99), self.longest)

    def quantile(self, share: float) -> float:
        """Return the duration that a share of all (0 to 1) do not exceed; 0.0 if there is none."""
        below = 0
        for number in sorted(self._classes):
            below += self._classes[number]
            if below >= share * self.count:
                return float(min(10 ** ((number + 0.5) / PER_DECADE), self.longest))
        return 0.0
