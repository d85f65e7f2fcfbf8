"""In vLLM's cache other tools' entries are judged by their own profiles; of its own nothing is taken."""

from __future__ import annotations

import pytest

from tests.lib.built_entries import RANK, SHARED, below
from tests.lib.cache_files import STEM, cubin, triton_kernel
from tests.lib.judging import Judge


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        (below(f"{RANK}/triton_cache/", triton_kernel("3.9")), None),
        (below(f"{RANK}/inductor_cache/", {f"{STEM}.main.cpp": b"int x;", f"{STEM}.main.so": SHARED}), None),
        (below(f"{RANK}/inductor_cache/", {f"{STEM}.main.cpp": b"int x;"}), "incomplete"),
        (below("deep_gemm/cache/kernel.a.01234567/", {"kernel.cu": b"x", "kernel.cubin": cubin()}), None),
    ],
)
def test_other_tools_entries(verdict: Judge, files: dict[str, bytes], reason: str | None) -> None:
    """Whole ones are valid, others are refused."""
    assert verdict("vllm", files) == reason
