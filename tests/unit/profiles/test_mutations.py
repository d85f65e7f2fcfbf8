"""What share of damaged files each validator finds: the second table of docs/reference/profiles.md, counted again.

For tools that need a GPU; their files are built by hand, of contents that are the same everywhere. The first table is
of real tools' files (tests/integration/test_profiles_real.py).
"""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

import pytest

from tests.support.built_entries import (
    ARTIFACT,
    BUILT,
    GEMM,
    KERNEL,
    OPS,
    PART,
    SGLANG,
    SGLANG_LEAF,
    SOURCES,
    TILE,
    VLLM,
    operation,
    tile,
)
from tests.support.cache_files import torch_artifact
from tests.support.mutations import MUTATIONS
from warmstart.profiles import registry
from warmstart.profiles.judge import judge

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "reference" / "profiles.md"
NOISE = random.Random(7).randbytes(20_000)
LOG = f"{OPS}/cached_ops/x/.ninja_log"
DEPS = f"{OPS}/cached_ops/x/.ninja_deps"
ARTIFACTS = {**VLLM, f"{PART}/{ARTIFACT}": torch_artifact(b"CacheCompiledArtifact", b"key", b"a2V5", NOISE)}
RTX = {"runtime_cache.bin": NOISE}
DRIVER = {"index": NOISE[:5000], "a/f/0123456789abcdef": NOISE}

# What a row is called: the profile, an entry that is valid, and the file of it that is damaged.
ROWS: dict[str, tuple[str, dict[str, bytes], str]] = {
    "DeepGEMM cubin": ("deepgemm", GEMM, f"{KERNEL}/kernel.cubin"),
    "TileLang kernel source": ("tilelang", tile(SOURCES), f"{TILE}/device_kernel.cu"),
    "TileLang manifest": ("tilelang", tile(SOURCES), f"{TILE}/manifest.json"),
    "vLLM artifact": ("vllm", ARTIFACTS, f"{PART}/{ARTIFACT}"),
    "vLLM index": ("vllm", ARTIFACTS, f"{PART}/vllm_compile_cache.py"),
    "SGLang dependencies": ("sglang", SGLANG, f"{SGLANG_LEAF}/sgl_deps.json"),
    "ninja's log": ("flashinfer", operation(BUILT), LOG),
    "ninja's dependencies": ("flashinfer", operation(BUILT), DEPS),
    "TensorRT-RTX runtime cache": ("trt-rtx", RTX, "runtime_cache.bin"),
    "CUDA driver's kernel": ("cuda-computecache", DRIVER, "a/f/0123456789abcdef"),
    "CUDA driver's index": ("cuda-computecache", DRIVER, "index"),
}


def found(stage: Path, profile: str, files: dict[str, bytes], name: str) -> dict[str, str]:
    """Return `found/damaged` for each kind of damage to one file of an entry."""
    for path, content in files.items():
        (stage / path).parent.mkdir(parents=True, exist_ok=True)
        (stage / path).write_bytes(content)
    entry = registry.get(profile).entry_of(name)
    assert entry
    dice = random.Random(20)
    counts = {}
    fd = os.open(stage, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert judge(profile, fd, {entry: list(files)}) == {entry: None}
        for kind, (mutate, times) in MUTATIONS.items():
            reasons = []
            for _ in range(times):
                damaged = mutate(files[name], dice)
                if damaged != files[name]:
                    (stage / name).write_bytes(damaged)
                    reasons.append(judge(profile, fd, {entry: list(files)})[entry])
            counts[kind] = f"{sum(reason is not None for reason in reasons)}/{len(reasons)}"
    finally:
        os.close(fd)
    return counts


@pytest.mark.parametrize("row", ROWS)
def test_the_documented_shares_are_what_is_found(row: str, tmp_path: Path) -> None:
    """Neither more nor less: the page promises nothing that the validators don't hold."""
    lines = r"^\| ([^|]+) \| (\d+/\d+ \| \d+/\d+ \| \d+/\d+ \| \d+/\d+) \|$"
    documented = dict(re.findall(lines, DOCUMENT.read_text(), re.MULTILINE))
    assert " | ".join(found(tmp_path, *ROWS[row]).values()) == documented.get(row)
