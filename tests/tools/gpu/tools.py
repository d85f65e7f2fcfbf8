"""The tools that the suite knows: what has to be there, which profiles a job gets, and its program."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import NamedTuple

from warmstart.profiles import registry


class Tool(NamedTuple):
    """One tool."""

    name: str  # as `TOOLS=`, the log and the results have it
    profiles: tuple[str, ...]
    program: tuple[str, ...]  # of jobs/, and arguments
    seconds: int  # of its jobs together: a guess, to plan with
    modules: tuple[str, ...] = ()  # that Python finds
    commands: tuple[str, ...] = ()  # on PATH

    def missing(self) -> str:
        """Return what is not installed here, "" if all is."""
        absent = [name for name in self.modules if not _imports(name)]
        absent += [name for name in self.commands if shutil.which(name) is None]
        return ", ".join(absent)

    @property
    def moves(self) -> bool:
        """Whether all its profiles claim that entries hit at another path."""
        return all(registry.get(name).relocation != "constant-path" for name in self.profiles)

    @property
    def limit_s(self) -> int:
        """Return after how many seconds a job is ended."""
        return max(_LEAST_LIMIT_S, 2 * self.seconds)


_LEAST_LIMIT_S = 180  # reading PyTorch from a cold disk takes minutes
NVCC = ("nvcc", "ninja")
# In the order in which they are tried: what most people use, and what most machines have, first.
TOOLS: Sequence[Tool] = (
    Tool("triton", ("triton",), ("triton_job.py",), 40, ("triton", "torch")),
    Tool("inductor", ("inductor", "triton"), ("inductor_job.py",), 120, ("torch", "triton")),
    Tool("jax", ("jax",), ("jax_job.py",), 60, ("jax",)),
    Tool("cupy", ("cupy",), ("cupy_job.py",), 30, ("cupy",)),
    Tool("numba", ("numba",), ("numba_cuda_job.py",), 30, ("numba_cuda",)),
    Tool("warp", ("warp",), ("warp_job.py",), 30, ("warp",)),
    Tool("extension", ("torch-extensions",), ("extension_job.py",), 120, ("torch",), NVCC),
    Tool("tvm-ffi", ("tvm-ffi",), ("tvm_ffi_job.py",), 90, ("tvm_ffi", "torch"), NVCC),
    Tool("flashinfer", ("flashinfer",), ("flashinfer_job.py",), 120, ("flashinfer", "torch"), NVCC),
    Tool("quack", ("cute-dsl",), ("quack_job.py",), 60, ("quack", "cutlass", "torch")),
    Tool("tilelang", ("tilelang",), ("tilelang_job.py",), 90, ("tilelang", "torch"), ("nvcc",)),
    Tool("deepgemm", ("deepgemm",), ("deepgemm_job.py",), 60, ("deep_gemm", "torch"), ("nvcc",)),
    Tool("vllm", ("vllm", "inductor", "triton", "flashinfer"), ("vllm_job.py",), 400, ("vllm",)),
    Tool("sglang", ("sglang", "inductor", "triton", "flashinfer"), ("sglang_job.py",), 400, ("sglang",)),
)


def _imports(module: str) -> bool:
    """Return whether Python, as it runs jobs, finds a module; nothing is imported."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, cwd="/").returncode == 0
