"""A job that compiles with CuTe DSL through QuACK's cache and FlashAttention 4's, and prints its hits as one JSON line.

Only the compiler runs: no kernel is launched, and no GPU is needed. A second process loads both kernels' objects.
"""

from __future__ import annotations

import os
import time

os.environ.setdefault("CUTE_DSL_ARCH", "sm_90a")

import cute_kernel
from flash_attn.cute.cache_utils import get_jit_cache
from quack.cache import jit_cache
from report import report

built: list[int] = []


@jit_cache  # type: ignore[untyped-decorator]
def quacks_kernel(length: int) -> object:
    built.append(length)
    return cute_kernel.compiled(length)


started = time.perf_counter()
quacks_kernel(512)
cache = get_jit_cache("twice")
key = ("twice", 1024)
if key not in cache:
    built.append(1024)
    cache[key] = cute_kernel.compiled(1024)
report(started, 2 - len(built), len(built))
