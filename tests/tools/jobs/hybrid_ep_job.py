"""A job that takes HybridEP's kernels through NeMo Automodel's shared cache, and prints its hits as one JSON line.

Automodel's own functions bring kernels from the cache and store new ones. HybridEP's part needs a GPU and nvcc: g++
stands in for nvcc, and this job for what loads each library.
"""

from __future__ import annotations

import ctypes
import subprocess
import time
from pathlib import Path

import torch
from nemo_automodel.components.moe.megatron import fused_a2a
from report import report

# As HybridEP names them: hidden size, tokens of a rank, experts of a rank, ranks of a node, nodes, and so on.
KERNELS = ("7168-4096-8-8-2-0-128-128-24-1-0", "7168-4096-8-8-2-uint16_t-10-2-8-2-0-8-128-24-16-1-0-1-0")
SOURCE = 'extern "C" const char *get_function_ptr() {{ return "{}"; }}\n'

started = time.perf_counter()
torch.cuda.get_device_capability = lambda *_: (9, 0)
fused_a2a._deep_ep_version = lambda: "1.2.1"
assert fused_a2a._warm_start_hybrid_ep_jit()
directory = Path(fused_a2a._jit_proc_dir)
hits = 0
for key in KERNELS:
    library = directory / f"{key}.so"
    if library.exists():
        hits += 1
    else:
        source = SOURCE.format(key).encode()
        built = directory / f"{key}-rank-0-node-0-1-c0.so"
        subprocess.run(["g++", "-shared", "-fPIC", "-x", "c++", "-", "-o", built], input=source, check=True)
        built.rename(library)
    function = ctypes.CDLL(str(library)).get_function_ptr
    function.restype = ctypes.c_char_p
    assert function() == key.encode()
fused_a2a.store_hybrid_ep_jit_cache()
report(started, hits, len(KERNELS) - hits)
