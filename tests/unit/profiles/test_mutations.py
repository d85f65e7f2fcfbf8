"""What share of damaged files each validator finds, of files made by hand.

They are of tools that need a GPU, of contents that are the same everywhere. tests/node/test_profiles_real.py
damages real files.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.lib.built_entries import (
    BUILT,
    GEMM,
    KERNEL,
    OPS,
    SGLANG,
    SGLANG_LEAF,
    SOURCES,
    TILE,
    operation,
    tile,
)
from tests.lib.mutations import MUTATIONS
from warmstart.profiles import registry
from warmstart.profiles.judge import judge

NOISE = random.Random(7).randbytes(20_000)
LOG = f"{OPS}/cached_ops/x/.ninja_log"
DEPS = f"{OPS}/cached_ops/x/.ninja_deps"
RTX = {"runtime_cache.bin": NOISE}

# What is damaged: the profile, an entry that is valid, the file of it, and what is found of each kind of damage.
ROWS: dict[str, tuple[str, dict[str, bytes], str, str]] = {
    "DeepGEMM cubin": ("deepgemm", GEMM, f"{KERNEL}/kernel.cubin", "29/29 20/20 20/20 3/40"),
    "TileLang kernel source": ("tilelang", tile(SOURCES), f"{TILE}/device_kernel.cu", "29/29 20/20 20/20 40/40"),
    "TileLang manifest": ("tilelang", tile(SOURCES), f"{TILE}/manifest.json", "29/29 20/20 20/20 40/40"),
    "SGLang dependencies": ("sglang", SGLANG, f"{SGLANG_LEAF}/sgl_deps.json", "29/29 20/20 20/20 40/40"),
    "ninja's log": ("flashinfer", operation(BUILT), LOG, "29/29 20/20 20/20 26/40"),
    "ninja's dependencies": ("flashinfer", operation(BUILT), DEPS, "28/29 12/15 20/20 20/40"),
    "TensorRT-RTX runtime cache": ("trt-rtx", RTX, "runtime_cache.bin", "0/29 14/20 0/20 0/40"),
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
def test_the_known_shares_are_found(row: str, tmp_path: Path) -> None:
    """Neither more nor less: docs/reference/profiles.md promises nothing that the validators don't hold."""
    profile, files, name, known = ROWS[row]
    assert " ".join(found(tmp_path, profile, files, name).values()) == known
