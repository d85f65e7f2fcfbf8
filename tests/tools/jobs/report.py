"""What a job prints at its end: one line of JSON, with what its tool found in its cache and what it had to compile."""

from __future__ import annotations

import json
import time


def report(started: float, hits: int, misses: int) -> None:
    """Print it. `started` is what `time.perf_counter` said before the tool's first look-up."""
    seconds = round(time.perf_counter() - started, 3)
    line = {"seconds": seconds, "cache_hits": hits, "cache_misses": misses}
    print(json.dumps(line), flush=True)  # noqa: T201 - the job's output is its result
