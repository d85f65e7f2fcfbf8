"""A job that compiles a model's forward and backward pass with torch.compile. Inductor counts its graphs."""

from __future__ import annotations

import time

import torch
from report import report
from torch._dynamo.utils import counters


def main() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(256, 512), torch.nn.GELU(), torch.nn.LayerNorm(512), torch.nn.Linear(512, 256)
    ).cuda()
    values = torch.rand(128, 256, device="cuda")
    started = time.perf_counter()
    loss = torch.compile(model)(values).square().mean()
    loss.backward()
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    results = [loss, *(parameter.grad for parameter in model.parameters() if parameter.grad is not None)]
    inductor = counters["inductor"]
    report(
        seconds,
        *(one.detach().cpu().numpy().tobytes() for one in results),
        packages=("torch", "triton"),
        hits=inductor["fxgraph_cache_hit"],
        misses=inductor["fxgraph_cache_miss"],
    )


if __name__ == "__main__":
    main()
