"""A job that compiles a kernel with Numba for CUDA: Numba keeps its own entry, the driver what it made of the PTX."""

from __future__ import annotations

import time

import numpy as np
from numba import cuda
from report import report

SIZE = 4096


@cuda.jit(cache=True)
def smooth(values, out):  # noqa: ANN001, ANN201
    at = cuda.grid(1)
    if 0 < at < values.size - 1:
        out[at] = values[at - 1] * 0.25 + values[at] * 0.5 + values[at + 1] * 0.25


values = np.linspace(0, 1, SIZE, dtype=np.float32)
out = np.zeros_like(values)
started = time.perf_counter()
smooth[SIZE // 128, 128](values, out)
cuda.synchronize()
seconds = time.perf_counter() - started
stats = getattr(smooth, "stats", None)
hits = sum(stats.cache_hits.values()) if stats else None
misses = sum(stats.cache_misses.values()) if stats else None
report(seconds, out.tobytes(), packages=("numba", "numba-cuda"), hits=hits, misses=misses)
