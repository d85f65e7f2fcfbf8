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

    name: str
    profiles: tuple[str, ...]
    program: tuple[str, ...]  # of jobs/, and arguments
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


TOOLS: Sequence[Tool] = (
    Tool("NVIDIA driver, PTX", ("cuda-computecache",), ("driver_job.py",)),
    Tool("Triton", ("triton",), ("triton_job.py",), ("triton", "torch")),
    Tool("Inductor", ("inductor", "triton"), ("inductor_job.py",), ("torch",)),
    Tool("JAX", ("jax",), ("jax_job.py",), ("jax",)),
    Tool("CuPy", ("cupy",), ("cupy_job.py",), ("cupy",)),
    Tool("CuTe DSL", ("cute-dsl",), ("quack_job.py",), ("quack", "torch")),
    Tool("CuPy", ("cupy",), ("cupy_job.py",), ("cupy",)),
    Tool("Numba for CUDA", ("numba", "cuda-computecache"), ("numba_cuda_job.py",), ("numba", "numpy")),
    Tool("CUDA extension", ("torch-extensions",), ("extension_job.py",), ("torch",), ("nvcc", "ninja")),
    Tool("CuTe DSL by QuACK", ("cute-dsl",), ("quack_job.py",), ("quack", "cutlass", "torch")),
    Tool("FlashInfer", ("flashinfer",), ("flashinfer_job.py",), ("flashinfer", "torch"), ("nvcc", "ninja")),
    Tool("DeepGEMM", ("deepgemm",), ("deepgemm_job.py",), ("deep_gemm", "torch"), ("nvcc",)),
    Tool("TileLang", ("tilelang",), ("tilelang_job.py",), ("tilelang", "torch")),
    Tool("vLLM", ("vllm", "inductor", "triton", "flashinfer"), ("vllm_job.py",), ("vllm",)),
    Tool("SGLang", ("sglang", "inductor", "triton", "flashinfer"), ("sglang_job.py",), ("sglang",)),
)


def _imports(module: str) -> bool:
    """Return whether Python, as it runs jobs, finds a module; nothing is imported."""
    code = f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"
    return subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, cwd="/").returncode == 0
