"""A job that compiles through both caches of cuDNN's Python frontend, and prints their hits as one JSON line.

Only the compiler runs: no kernel is launched. The frontend keeps nothing where it cannot name the GPU and the driver,
so this job names them. A second process loads both kernels' objects.
"""

from __future__ import annotations

import os
import time

os.environ.setdefault("CUTE_DSL_ARCH", "sm_90a")

import cute_kernel
from cudnn.flex_attention.runtime.compile_cache import get_jit_cache
from cudnn.frost import compiled_cache
from cutlass.cute.runtime import make_fake_compact_tensor
from report import report

KNOWN = compiled_cache.environment_manifest()
GPU = {"device_name": "NVIDIA H100 80GB HBM3", "compute_capability": "9.0", "sm_count": "132", "l2_bytes": "52428800"}

started = time.perf_counter()
compiled_cache.environment_manifest = lambda *_: {**KNOWN, **GPU, "cuda_driver": "13000"}
vector = make_fake_compact_tensor(cute_kernel.cutlass.Float32, (512,), stride_order=(0,))
options = "--enable-tvm-ffi"
compiled_cache.compile_cached(cute_kernel.twice, vector, vector, cache_key="twice|512", options=options)
plans = compiled_cache.stats()
cache, key = get_jit_cache("twice"), ("twice", 1024)
found = key in cache
if not found:
    cache[key] = cute_kernel.compiled(1024)
report(started, plans["hits"] + found, plans["misses"] + (not found))
