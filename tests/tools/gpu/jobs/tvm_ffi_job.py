"""A job that builds a CUDA extension with tvm-ffi: a library that it writes anew is a miss."""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
import tvm_ffi.cpp
from report import report

SOURCE = """
__global__ void twice_kernel(float *x, int64_t n) {
  int64_t at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at < n) x[at] = 2.0f * x[at];
}

void twice(tvm::ffi::TensorView x) {
  DLDevice device = x.device();
  auto stream = static_cast<cudaStream_t>(TVMFFIEnvGetStream(device.device_type, device.device_id));
  twice_kernel<<<(x.size(0) + 255) / 256, 256, 0, stream>>>(static_cast<float *>(x.data_ptr()), x.size(0));
}
"""


def built() -> dict[Path, int]:
    """Return the libraries in tvm-ffi's cache with the times of their builds."""
    return {path: path.stat().st_mtime_ns for path in Path(os.environ["TVM_FFI_CACHE_DIR"]).glob("twice_*/twice.so")}


before = built()
started = time.perf_counter()
module = tvm_ffi.cpp.load_inline("twice", cuda_sources=SOURCE, functions="twice")
values = torch.arange(4096, device="cuda", dtype=torch.float32)
module.twice(values)
torch.cuda.synchronize()
seconds = time.perf_counter() - started
misses = int(built() != before)
packages = ("apache-tvm-ffi", "torch")
report(seconds, values.cpu().numpy().tobytes(), packages=packages, hits=1 - misses, misses=misses)
