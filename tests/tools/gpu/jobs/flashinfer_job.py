"""A job one of whose kernels FlashInfer builds with nvcc. A library that is built or built again is a miss."""

from __future__ import annotations

import os
import time
from pathlib import Path

import flashinfer
import torch
from report import report


def libraries() -> dict[Path, int]:
    """Return the libraries that are built, with their times."""
    return {path: path.stat().st_mtime_ns for path in Path(os.environ["FLASHINFER_WORKSPACE_BASE"]).rglob("*.so")}


torch.manual_seed(0)
values = torch.rand(128, 512, device="cuda", dtype=torch.float16)
before = libraries()
started = time.perf_counter()
found = flashinfer.silu_and_mul(values)  # of one source: attention takes minutes
torch.cuda.synchronize()
seconds = time.perf_counter() - started
after = libraries()
gate, factor = values.float().chunk(2, dim=1)
assert torch.allclose(found.float(), torch.nn.functional.silu(gate) * factor, atol=1e-3)
built = sum(before.get(path) != time_ns for path, time_ns in after.items())
packages = ("flashinfer-python", "torch")
report(seconds, found.cpu().numpy().tobytes(), packages=packages, hits=len(after) - built, misses=built)
