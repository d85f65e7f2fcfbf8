"""A job that compiles kernels with CuPy, which counts nothing: a file that it adds to its cache is a miss."""

from __future__ import annotations

import os
import time

import cupy
from report import report

KERNELS = 2


def kept() -> set[str]:
    directory = os.environ["CUPY_CACHE_DIR"]
    return set(os.listdir(directory)) if os.path.isdir(directory) else set()


values = cupy.linspace(0, 1, 4096, dtype=cupy.float32)
cupy.cuda.Device().synchronize()
before = kept()  # with what linspace took
started = time.perf_counter()
squared = cupy.ElementwiseKernel("float32 x", "float32 y", "y = x * x + sinf(x)", "warmstart_square")(values)
total = cupy.ReductionKernel("float32 x", "float32 y", "expf(x)", "a + b", "y = a", "0", "warmstart_sum")(squared)
cupy.cuda.Device().synchronize()
seconds = time.perf_counter() - started
misses = len(kept() - before)
report(
    seconds,
    cupy.asnumpy(squared).tobytes(),
    cupy.asnumpy(total).tobytes(),
    packages=("cupy-cuda13x", "cupy-cuda12x"),
    hits=max(KERNELS - misses, 0),
    misses=misses,
)
