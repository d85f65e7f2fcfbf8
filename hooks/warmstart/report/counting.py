"""Counting in bounded memory: the most frequent names, and quantiles of durations. And a count in words."""

from __future__ import annotations

import math
from collections.abc import Iterator

MOST_NAMES = 4096
PER_DECADE = 40  # classes of durations; a quantile is exact to 3 %
SHORTEST = 1e-4  # seconds; shorter durations count as this
OTHERS = "(others)"


def counted(number: int, noun: str) -> str:
    """Return a number of things: `1 user`, `2,000 users`."""
    return f"{number:,} {noun}{'s' * (number != 1)}"


class Tally:
    """Numbers by name. Beyond `MOST_NAMES` names the smaller half is added to `others`."""

    def __init__(self, most: int = MOST_NAMES) -> None:
        self._most = most
        self._found: dict[str, float] = {}
        self.others = 0.0
        self.total = 0.0

    def add(self, name: str, count: float = 1) -> None:
        """Add to the number of a name."""
        self._found[name] = self._found.get(name, 0) + count
        self.total += count
        if len(self._found) > self._most:
            kept = sorted(self._found.items(), key=lambda item: -item[1])[: self._most // 2]
            self._found = dict(kept)
            self.others = self.total - sum(self._found.values())

    def top(self, most: int) -> list[tuple[str, float]]:
        """Return the largest numbers with their names, then the rest as `OTHERS` if there is any."""
        ordered = sorted(self._found.items(), key=lambda item: (-item[1], item[0]))
        rest = self.others + sum(count for _, count in ordered[most:])
        return [*ordered[:most], *([(OTHERS, rest)] if rest else [])]

    def __getitem__(self, name: str) -> float:
        return self._found.get(name, 0)

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)


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

    def quantile(self, share: float) -> float:
        """Return the duration that a share of all (0 to 1) do not exceed; 0.0 if there is none."""
        below = 0
        for number in sorted(self._classes):
            below += self._classes[number]
            if below >= share * self.count:
                return float(min(10 ** ((number + 0.5) / PER_DECADE), self.longest))
        return 0.0
