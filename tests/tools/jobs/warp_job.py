"""A job that compiles with Warp for the CPU, runs the kernel, and compiles it for two GPUs that need not be there.

It prints one JSON line: what Warp has to compile is a miss.
"""

from __future__ import annotations

import time
from pathlib import Path

import warp
from report import report

warp.config.log_level = warp.LOG_ERROR
ARCHES = (80, 90)
KINDS = (".o", *(f".sm{arch}.cubin" for arch in ARCHES))


@warp.kernel  # type: ignore[untyped-decorator]
def scale(x: warp.array(dtype=float), by: float) -> None:  # type: ignore[valid-type]
    at = warp.tid()
    x[at] = x[at] * by


warp.init()
cache = Path(warp.config.kernel_cache_dir)
found = [any(cache.glob(f"*/*{kind}")) for kind in KINDS]
module = warp.get_module(__name__)
started = time.perf_counter()
values = warp.ones(1000, dtype=float, device="cpu")
warp.launch(scale, dim=1000, inputs=[values, 3.0], device="cpu")
assert values.numpy().sum() == 3000.0
for arch, there in zip(ARCHES, found[1:], strict=True):
    if not there:
        directory = cache / module.get_module_identifier(block_dim=256)
        warp.compile_aot_module(module, arch=arch, module_dir=directory, use_ptx=False, strip_hash=False)
assert all(any(cache.glob(f"*/*{kind}")) for kind in KINDS)
report(started, sum(found), len(found) - sum(found))
