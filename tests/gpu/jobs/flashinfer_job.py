"""A job whose attention kernel FlashInfer builds. A library that is built or built again is a miss."""

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


def main() -> None:
    """Build, run, report."""
    torch.manual_seed(0)
    q, k, v = (torch.rand(128, heads, 128, device="cuda", dtype=torch.float16) for heads in (8, 2, 2))
    before = libraries()
    started = time.perf_counter()
    found = flashinfer.single_prefill_with_kv_cache(q, k, v, causal=True)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    after = libraries()
    built = sum(before.get(path) != time_ns for path, time_ns in after.items())
    packages = ("flashinfer-python", "torch")
    report(seconds, found.cpu().numpy().tobytes(), packages=packages, hits=len(after) - built, misses=built)


if __name__ == "__main__":
    main()
