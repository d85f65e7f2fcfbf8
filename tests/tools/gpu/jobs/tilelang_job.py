"""A job that compiles a kernel with TileLang."""

from __future__ import annotations

import time

import tilelang
import tilelang.language as T  # noqa: N812 - as in its documents
import torch
from report import report

SIZE, BLOCK = 65536, 1024


@tilelang.jit(out_idx=[-1])
def add(n: int, block: int):  # noqa: ANN201

    @T.prim_func
    def kernel(a: T.Tensor((n,), "float32"), b: T.Tensor((n,), "float32"), c: T.Tensor((n,), "float32")):  # noqa: ANN202
        with T.Kernel(T.ceildiv(n, block), threads=128) as at:
            for i in T.Parallel(block):
                c[at * block + i] = a[at * block + i] + b[at * block + i]

    return kernel


def main() -> None:
    torch.manual_seed(0)
    a, b = (torch.rand(SIZE, device="cuda") for _ in range(2))
    started = time.perf_counter()
    found = add(SIZE, BLOCK)(a, b)
    torch.cuda.synchronize()
    seconds = time.perf_counter() - started
    assert torch.equal(found, a + b)
    report(seconds, found.cpu().numpy().tobytes(), packages=("tilelang", "torch"), hits=None, misses=None)


if __name__ == "__main__":
    main()
