"""A job whose matrix product DeepGEMM compiles."""

from __future__ import annotations

import time

import deep_gemm
import torch
from report import report

torch.manual_seed(0)
a, b = (torch.rand(256, 512, device="cuda", dtype=torch.bfloat16) for _ in range(2))
found = torch.empty(256, 256, device="cuda", dtype=torch.bfloat16)
started = time.perf_counter()
deep_gemm.bf16_gemm_nt(a, b, found)
torch.cuda.synchronize()
seconds = time.perf_counter() - started
assert torch.allclose(found.float(), a.float() @ b.float().T, rtol=2e-2)
packages = ("deep-gemm", "torch")
report(seconds, found.view(torch.int16).cpu().numpy().tobytes(), packages=packages, hits=None, misses=None)
