"""A job that builds a CUDA extension with torch: a build is a miss, none a hit. ninja decides."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
from report import report
from torch.utils.cpp_extension import load

library = Path(os.environ["TORCH_EXTENSIONS_DIR"]) / "scale" / "scale.so"
before = library.stat().st_mtime_ns if library.exists() else 0
values = torch.linspace(0, 1, 4096, device="cuda")
started = time.perf_counter()
module = load("scale", [str(Path(__file__).with_name("extension_job.cu"))])
found = module.scale(values)
torch.cuda.synchronize()
seconds = time.perf_counter() - started
built = library.stat().st_mtime_ns != before
report(seconds, found.cpu().numpy().tobytes(), packages=("torch", "ninja"), hits=int(not built), misses=int(built))
