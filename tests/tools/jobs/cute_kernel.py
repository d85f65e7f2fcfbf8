"""One small kernel of CuTe DSL, which `cute_dsl_job` and `flashinfer_job` compile for a GPU that need not be there."""

from __future__ import annotations

import cutlass
from cutlass import cute
from cutlass.cute.runtime import make_fake_compact_tensor


@cute.kernel  # type: ignore[untyped-decorator]
def twice_kernel(source: cute.Tensor, target: cute.Tensor) -> None:
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    at = block * 128 + thread
    target[at] = source[at] + source[at]


@cute.jit  # type: ignore[untyped-decorator]
def twice(source: cute.Tensor, target: cute.Tensor) -> None:
    twice_kernel(source, target).launch(grid=[4, 1, 1], block=[128, 1, 1])


def compiled(length: int) -> object:
    """Compile for vectors of that length and for sm_90a, where neither the job nor a device says another."""
    vector = make_fake_compact_tensor(cutlass.Float32, (length,), stride_order=(0,))
    return cute.compile(twice, vector, vector, options="--enable-tvm-ffi")
