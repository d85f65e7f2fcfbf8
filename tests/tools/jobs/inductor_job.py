"""A job that compiles with torch.compile on CPU and prints one JSON line with Inductor's own counters.

The settings make one small real compile short: no 150 MB of precompiled headers for a single kernel. The
trial compiles for what this CPU adds to AVX-512 stay, as their libraries are entries without a `.main` in the name.
Inductor's configuration is part of its keys: all jobs that are to share entries set these alike.
"""

from __future__ import annotations

import os
import time

os.environ.setdefault("TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS", "0")
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import torch  # reads the environment when it is imported
from report import report
from torch._dynamo.utils import counters


def model(x: torch.Tensor) -> torch.Tensor:
    """Elementwise work that Inductor fuses into one C++ kernel."""
    return (x.sin() + 1.0).relu() * 0.5


torch.set_num_threads(1)  # part of the key of a CPU graph
started = time.perf_counter()
with torch.no_grad():
    result = torch.compile(model)(torch.ones(64))
assert torch.allclose(result, model(torch.ones(64)))
inductor = counters["inductor"]
report(started, inductor["fxgraph_cache_hit"], inductor["fxgraph_cache_miss"])
