"""A job that tunes a kernel with Helion on the CPU and prints its cache's own counters as one JSON line.

The kernel runs in JAX's interpreter for Pallas, so no GPU is needed. Two configurations are tried.
"""

from __future__ import annotations

import os
import time

os.environ.setdefault("HELION_PALLAS_INTERPRET", "1")

import helion
import torch
from helion import language as hl
from helion._utils import counters
from helion.autotuner import FiniteSearch, LocalAutotuneCache
from report import report


def search(kernel: object, arguments: object, **_: object) -> LocalAutotuneCache:
    """Choose between two configurations, or take what the cache has."""
    return LocalAutotuneCache(FiniteSearch(kernel, arguments, [helion.Config(block_sizes=[at]) for at in (16, 32)]))


@helion.kernel(backend="pallas", autotuner_fn=search)  # type: ignore[untyped-decorator]
def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size()):
        out[tile] = x[tile] + y[tile]
    return out


started = time.perf_counter()
ones = torch.ones(64)
assert (add(ones, ones) == 2).all()
report(started, counters["autotune"]["cache_hit"], counters["autotune"]["cache_miss"])
