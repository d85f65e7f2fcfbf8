"""A job that compiles a kernel with Warp, which counts nothing: code that it adds to its cache is a miss."""

from __future__ import annotations

import time
from pathlib import Path

import warp
from report import report

warp.config.log_level = warp.LOG_ERROR


@warp.kernel  # type: ignore[untyped-decorator]
def scale(x: warp.array(dtype=float), by: float) -> None:  # type: ignore[valid-type]
    at = warp.tid()
    x[at] = warp.sin(x[at] * by)


def compiled() -> set[Path]:
    """Return the code for GPUs that is in Warp's cache."""
    cache = Path(warp.config.kernel_cache_dir)
    return {*cache.glob("*/*.cubin"), *cache.glob("*/*.ptx")}


warp.init()
before = compiled()
started = time.perf_counter()
values = warp.ones(4096, dtype=float, device="cuda:0")
warp.launch(scale, dim=4096, inputs=[values, 3.0], device="cuda:0")
warp.synchronize()
seconds = time.perf_counter() - started
misses = len(compiled() - before)
report(seconds, values.numpy().tobytes(), packages=("warp-lang",), hits=int(not misses), misses=misses)
