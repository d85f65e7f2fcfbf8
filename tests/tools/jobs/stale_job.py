"""A job whose cached function calls one of another file, and prints one JSON line: the result, and Numba's counters.

Numba's stamp is of this file alone: after an edit of the helper it takes the cached code, which has the old one in it.
"""

from __future__ import annotations

import json

import numba
from stale_helper import factor  # type: ignore[import-not-found]


@numba.njit(cache=True)
def total(count: int) -> int:
    """Return `count` times the helper's factor."""
    result = 0
    for _ in range(count):
        result += factor()
    return result


def main() -> None:
    value = int(total(100))
    hits, misses = sum(total.stats.cache_hits.values()), sum(total.stats.cache_misses.values())
    print(json.dumps({"value": value, "hits": hits, "misses": misses}), flush=True)  # noqa: T201 - the job's result


if __name__ == "__main__":
    main()
