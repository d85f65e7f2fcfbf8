"""A job that compiles with CuTe DSL through QuACK's cache and FlashAttention 4's, and prints its hits as one JSON line.

Only the compiler runs: no kernel is launched, and no GPU is needed. A second process loads both kernels' objects.
"""

from __future__ import annotations

import json
import os
import time

os.environ.setdefault("CUTE_DSL_ARCH", "sm_90a")

import cute_kernel
from flash_attn.cute.cache_utils import get_jit_cache
from quack.cache import jit_cache

built: list[int] = []


@jit_cache  # type: ignore[untyped-decorator]
def quacks_kernel(length: int) -> object:
    """Compile what QuACK's cache lacks."""
    built.append(length)
    return cute_kernel.compiled(length)


def main() -> None:
    """Take one kernel from each of the two caches, and report."""
    started = time.perf_counter()
    quacks_kernel(512)
    cache = get_jit_cache("twice")
    key = ("twice", 1024)
    if key not in cache:
        built.append(1024)
        cache[key] = cute_kernel.compiled(1024)
    report = {
        "tool": "cute-dsl",
        "seconds": round(time.perf_counter() - started, 3),
        "cache_hits": 2 - len(built),
        "cache_misses": len(built),
    }
    print(json.dumps(report), flush=True)  # noqa: T201 - the job's output is its result


if __name__ == "__main__":
    main()
