"""A job that compiles with Numba and prints one JSON line with Numba's own cache counters.

Its functions are small, so that a cold run costs little more than the import of Numba.
"""

from __future__ import annotations

import json
import time

import numba
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@numba.njit(cache=True, fastmath=True)
def halve(values: Floats) -> None:
    """Divide each value by two."""
    for i in range(values.size):
        values[i] *= 0.5


@numba.njit(cache=True)
def total(values: Floats) -> float:
    """Add up."""
    found = 0.0
    for i in range(values.size):
        found += values[i]
    return found


def main() -> None:
    """Call both functions once and report."""
    started = time.perf_counter()
    values = np.ones(64)
    halve(values)
    assert total(values) == 32.0
    seconds = time.perf_counter() - started
    stats = [halve.stats, total.stats]
    report = {
        "tool": "numba",
        "seconds": round(seconds, 3),
        "cache_hits": sum(sum(one.cache_hits.values()) for one in stats),
        "cache_misses": sum(sum(one.cache_misses.values()) for one in stats),
    }
    print(json.dumps(report), flush=True)  # noqa: T201 - the job's output is its result


if __name__ == "__main__":
    main()
