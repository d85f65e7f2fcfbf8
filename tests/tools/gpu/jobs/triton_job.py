"""A job that compiles a Triton kernel and runs it. Triton tells whether it came from its cache."""

from __future__ import annotations

import time

import torch
import triton
import triton.language as tl
from report import report

SIZE = 4096


@triton.jit
def softmax_kernel(out, values, n, block: tl.constexpr):  # noqa: ANN001, ANN201
    row, at = tl.program_id(0), tl.arange(0, block)
    x = tl.load(values + row * n + at, mask=at < n, other=-float("inf"))
    x = tl.exp(x - tl.max(x, axis=0))
    tl.store(out + row * n + at, x / tl.sum(x, axis=0), mask=at < n)


hits: list[bool] = []
triton.knobs.compilation.listener = lambda **seen: hits.append(seen["cache_hit"])
torch.manual_seed(0)
values = torch.rand(64, SIZE, device="cuda")
out = torch.empty_like(values)
started = time.perf_counter()
softmax_kernel[(64,)](out, values, SIZE, block=SIZE)
torch.cuda.synchronize()
seconds = time.perf_counter() - started
assert torch.allclose(out, torch.softmax(values, dim=1), atol=1e-6)
found = out.cpu().numpy().tobytes()
report(seconds, found, packages=("triton", "torch"), hits=sum(hits), misses=len(hits) - sum(hits))
