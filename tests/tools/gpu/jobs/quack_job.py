"""A job that compiles a kernel of QuACK, which keeps what CuTe DSL makes of it, and counts."""

from __future__ import annotations

import time

import torch
from quack.softmax import Softmax, softmax
from report import report

torch.manual_seed(0)
values = torch.rand(64, 4096, device="cuda", dtype=torch.float32)
started = time.perf_counter()
found = softmax(values)
torch.cuda.synchronize()
seconds = time.perf_counter() - started
assert torch.allclose(found, torch.softmax(values, dim=1), atol=1e-5)
seen = Softmax.compile.cache_info()
packages = ("quack-kernels", "nvidia-cutlass-dsl", "torch")
report(seconds, found.cpu().numpy().tobytes(), packages=packages, hits=seen.hits, misses=seen.misses)
