"""A job that compiles with Triton for a GPU that need not be there, and prints one JSON line with its cache's hits.

Only the compiler runs: no kernel is launched. A second process takes both kernels from TRITON_CACHE_DIR. With the
argument `hip` they are for AMD's GPUs.
"""

from __future__ import annotations

import sys
import time

import triton
import triton.language as tl
from report import report
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

TARGETS = {
    "cuda": [GPUTarget("cuda", arch, 32) for arch in (80, 90)],
    "hip": [GPUTarget("hip", arch, 64) for arch in ("gfx90a", "gfx942")],
}


@triton.jit  # type: ignore[untyped-decorator]
def add_kernel(x, y, out, n, block: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    at = tl.program_id(0) * block + tl.arange(0, block)
    inside = at < n
    tl.store(out + at, tl.load(x + at, mask=inside) + tl.load(y + at, mask=inside), mask=inside)


hits: list[bool] = []
triton.knobs.compilation.listener = lambda **seen: hits.append(seen["cache_hit"])
signature = {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32", "block": "constexpr"}
started = time.perf_counter()
for target in TARGETS[sys.argv[1] if sys.argv[1:] else "cuda"]:
    source = ASTSource(fn=add_kernel, signature=signature, constexprs={"block": 256})
    triton.compile(source, target=target)
report(started, sum(hits), len(hits) - sum(hits))
