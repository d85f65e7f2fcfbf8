"""A job that compiles with Numba and prints one JSON line with Numba's own cache counters.

Its functions are small, so that a cold run costs little more than the import of Numba. With the argument `array` they
are functions that take the compiler seconds: it shows what a warm cache saves.
"""

from __future__ import annotations

import sys
import time

import numba
import numpy as np
from numpy.typing import NDArray
from report import report

Floats = NDArray[np.float64]


@numba.njit(cache=True, fastmath=True)
def halve(values: Floats) -> None:
    for i in range(values.size):
        values[i] *= 0.5


@numba.njit(cache=True)
def total(values: Floats) -> float:
    found = 0.0
    for i in range(values.size):
        found += values[i]
    return found


@numba.njit(cache=True, fastmath=True)
def relax(grid: Floats, rounds: int) -> Floats:
    other = grid.copy()
    for _ in range(rounds):
        for i in range(1, grid.shape[0] - 1):
            for j in range(1, grid.shape[1] - 1):
                other[i, j] = 0.25 * (grid[i - 1, j] + grid[i + 1, j] + grid[i, j - 1] + grid[i, j + 1])
        grid, other = other, grid
    return grid


@numba.njit(cache=True)
def spread(values: Floats) -> Floats:
    """Sort, normalise and accumulate: array functions that take the compiler some time."""
    ordered = np.sort(values)
    scaled = (ordered - ordered.mean()) / (ordered.std() + 1.0)
    result: Floats = np.cumsum(scaled) + np.sqrt(np.abs(scaled)) * np.sin(scaled)
    return result


started = time.perf_counter()
if sys.argv[1:] == ["array"]:
    relax(np.ones((16, 16)), 3)
    spread(np.linspace(0.0, 1.0, 64))
else:
    values = np.ones(64)
    halve(values)
    assert total(values) == 32.0
stats = [function.stats for function in (halve, total, relax, spread)]
hits = sum(sum(one.cache_hits.values()) for one in stats)
misses = sum(sum(one.cache_misses.values()) for one in stats)
report(started, hits, misses)
