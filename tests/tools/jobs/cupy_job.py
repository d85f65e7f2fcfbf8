"""A job that compiles with CuPy and NVRTC for a GPU that need not be there, and prints its hits as one JSON line.

CuPy's own look-up and storing run; only the last step, in which the driver loads the code, is left out.
"""

from __future__ import annotations

import time
from types import SimpleNamespace

from cupy.cuda import compiler, function
from report import report

SOURCE = 'extern "C" __global__ void twice(float* x) { x[threadIdx.x] *= 2; }'
TEMPLATE = "template<typename T> __global__ void half(T* x) { x[threadIdx.x] /= 2; }"
compiled: list[str] = []
nvrtc = compiler._compile_using_nvrtc_no_warning


def counted(source: str, *arguments: object) -> object:
    compiled.append(source)
    return nvrtc(source, *arguments)


class Unloaded(SimpleNamespace):
    """A module that no driver loads."""

    def load(self, code: bytes) -> None:
        assert code

    def _set_mapping(self, mapping: dict[str, str]) -> None:
        self.mapping = mapping


compiler._compile_using_nvrtc_no_warning = counted
compiler._get_arch_for_options_for_nvrtc = lambda arch: (f"-arch=sm_{arch}", "cubin")
function.Module = Unloaded
started = time.perf_counter()
for source, more in (
    (SOURCE, {}),
    (TEMPLATE, {"name_expressions": ("half<float>",)}),
    (SOURCE, {"to_ltoir": True}),
):
    compiler._compile_with_cache_cuda(source, ("-std=c++17",), "90", **more)
report(started, 3 - len(compiled), len(compiled))
