"""A job that compiles with Numba for a GPU that need not be there, and prints its hits as one JSON line.

numba-cuda's own look-up and storing run; only the driver is left out: the device is made up, and no kernel is launched.
"""

from __future__ import annotations

import importlib
import sys
import time
from types import SimpleNamespace
from typing import Any

from numba import float32, types
from report import report

cuda: Any = importlib.import_module("numba.cuda")  # numba-cuda takes the place of Numba's own
H100 = SimpleNamespace(compute_capability=(9, 0), id=0)


@cuda.jit(cache=True)
def smooth(values, out):  # type: ignore[no-untyped-def]  # noqa: ANN001, ANN201
    at = cuda.grid(1)
    if 0 < at < values.size - 1:
        out[at] = values[at - 1] * 0.25 + values[at] * 0.5 + values[at + 1] * 0.25


def without_driver() -> None:
    """Make the compiler believe in a device, and a kernel's binding stop at its machine code."""
    for module in [module for name, module in sys.modules.items() if name.startswith("numba")]:
        for name, value in (("get_current_device", H100), ("get_context", SimpleNamespace(device=H100))):
            if name in vars(module):
                setattr(module, name, lambda *_, value=value: value)
    cuda.dispatcher._Kernel.bind = lambda kernel: kernel._codelibrary.get_cubin()


without_driver()
started = time.perf_counter()
for element in (float32, types.float64):
    smooth.compile((types.Array(element, 1, "C"), types.Array(element, 1, "C")))
hits, misses = (sum(found.values()) for found in (smooth.stats.cache_hits, smooth.stats.cache_misses))
report(started, hits, misses)
