"""A job that compiles kernels with CuPy. A call of NVRTC is a miss."""

from __future__ import annotations

import time

import cupy
from cupy.cuda import compiler
from report import report

KERNELS = 2


def main() -> None:
    """Compile, run, report."""
    misses = 0
    compile_ = compiler.compile_using_nvrtc

    def counted(*arguments: object, **options: object) -> object:
        nonlocal misses
        misses += 1
        return compile_(*arguments, **options)

    compiler.compile_using_nvrtc = counted
    values = cupy.linspace(0, 1, 4096, dtype=cupy.float32)
    cupy.cuda.Device().synchronize()
    misses = 0  # of what linspace took
    started = time.perf_counter()
    squared = cupy.ElementwiseKernel("float32 x", "float32 y", "y = x * x + sinf(x)", "warmstart_square")(values)
    total = cupy.ReductionKernel("float32 x", "float32 y", "expf(x)", "a + b", "y = a", "0", "warmstart_sum")(squared)
    cupy.cuda.Device().synchronize()
    report(
        time.perf_counter() - started,
        cupy.asnumpy(squared).tobytes(),
        cupy.asnumpy(total).tobytes(),
        packages=("cupy-cuda13x", "cupy-cuda12x"),
        hits=KERNELS - misses,
        misses=misses,
    )


if __name__ == "__main__":
    main()
