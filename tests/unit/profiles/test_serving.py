"""vLLM's and SGLang's entries: their own, and other tools' below them."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.built_entries import (
    ARTIFACT,
    PART,
    RANK,
    SGLANG,
    SGLANG_LEAF,
    SGLANG_ROWS,
    SHARED,
    VLLM,
    VLLM_INDEX,
    VLLM_SAVED,
)
from tests.support.cache_files import STEM, cubin, relocatable, torch_artifact, triton_kernel
from tests.support.judging import SAME_STAGE, Judge
from warmstart.profiles.entry_files import REASONS
from warmstart.profiles.relocation import relocate

MODEL = f"torch_compile_cache/torch_aot_compile/{'a' * 64}/rank_0_0/model"


def below(prefix: str, files: dict[str, bytes]) -> dict[str, bytes]:
    """Return files in a directory."""
    return {prefix + name: content for name, content in files.items()}


@pytest.mark.parametrize(
    ("profile", "files"),
    [
        ("vllm", VLLM),
        ("vllm", VLLM | {f"{PART}/{ARTIFACT}": torch_artifact(b"AOTCompiledArtifact", b"torch key", b"pickle")}),
        ("vllm", {MODEL: pickle.dumps({"a": 1}, protocol=4)}),
        ("vllm", below(f"{RANK}/triton_cache/", triton_kernel("3.9"))),
        ("vllm", below(f"{RANK}/inductor_cache/", {f"{STEM}.main.cpp": b"int x;", f"{STEM}.main.so": SHARED})),
        ("vllm", below("deep_gemm/cache/kernel.a.01234567/", {"kernel.cu": b"x", "kernel.cubin": cubin()})),
        ("sglang", SGLANG),
        ("sglang", {f"cute_aot/{'a' * 64}.o": relocatable()}),
        ("sglang", below("triton/", triton_kernel("3.4"))),
        ("sglang", below(f"{RANK}/triton_cache/", triton_kernel("3.4"))),
    ],
)
def test_whole_entries_are_valid(verdict: Judge, profile: str, files: dict[str, bytes]) -> None:
    """Own entries, and other tools' judged by their own profiles."""
    assert verdict(profile, files) is None


@pytest.mark.parametrize(
    ("profile", "files", "reason"),
    [
        ("vllm", {f"{PART}/{ARTIFACT}": VLLM_SAVED}, "incomplete"),
        ("vllm", {f"{PART}/vllm_compile_cache.py": VLLM_INDEX}, "incomplete"),
        ("vllm", VLLM | {f"{PART}/vllm_compile_cache.py": b"{}"}, "incomplete"),
        ("vllm", VLLM | {f"{PART}/vllm_compile_cache.py": VLLM_INDEX[:-3]}, "literal-malformed"),
        ("vllm", VLLM | {f"{PART}/vllm_compile_cache.py": b"[" * 100_000}, "literal-malformed"),
        ("vllm", VLLM | {f"{PART}/vllm_compile_cache.py": b"__import__('os')"}, "literal-malformed"),
        ("vllm", VLLM | {f"{PART}/{ARTIFACT}": VLLM_SAVED[:-1]}, "hash-differs"),
        ("vllm", VLLM | {f"{PART}/{ARTIFACT}": b""}, "hash-differs"),
        ("vllm", VLLM | {f"{PART}/{ARTIFACT}": torch_artifact(b"Other", b"x")}, "field-malformed"),
        ("vllm", VLLM | {f"{PART}/{ARTIFACT}": torch_artifact(b"CacheCompiledArtifact", b"x")}, "field-malformed"),
        ("vllm", VLLM | {f"{PART}/computation_graph.py": b""}, "text-malformed"),
        ("vllm", {MODEL: pickle.dumps({"a": 1}, protocol=4)[:-1]}, "pickle-truncated"),
        ("sglang", {f"{SGLANG_LEAF}/sgl_deps.json": SGLANG[f"{SGLANG_LEAF}/sgl_deps.json"]}, "incomplete"),
        ("sglang", SGLANG | {f"{SGLANG_LEAF}/sgl_kernel_x.so": SHARED[:-1]}, "elf-truncated"),
        ("sglang", SGLANG | {f"{SGLANG_LEAF}/sgl_deps.json": json.dumps(SGLANG_ROWS[:1]).encode()}, "name-not-hash"),
        ("sglang", SGLANG | {f"{SGLANG_LEAF}/sgl_deps.json": b'{"a": 1}'}, "json-malformed"),
        ("sglang", SGLANG | {f"{SGLANG_LEAF}/sgl_deps.json": b"[[1]]"}, "json-malformed"),
        ("sglang", {f"cute_aot/{'a' * 64}.o": b""}, "elf-truncated"),
    ],
)
def test_what_a_server_would_fail_on_is_refused(
    verdict: Judge, profile: str, files: dict[str, bytes], reason: str
) -> None:
    """Indexes without their artifacts, checksums that differ, lists of other modules."""
    assert verdict(profile, files) == reason


@SAME_STAGE
@given(st.text("{}()[],: '\"ab01None\n", max_size=40))
def test_any_index_is_read_or_refused_as_python_does(verdict: Judge, text: str) -> None:
    """What our reader takes for a dictionary, Python takes, too; nothing makes it fail."""
    import ast

    answer = verdict("vllm", VLLM | {f"{PART}/vllm_compile_cache.py": text.encode()})
    assert answer in {None, *REASONS} - {"validator-failed"}
    if answer != "literal-malformed":
        assert isinstance(ast.literal_eval(text.strip()), dict)


def test_nested_groups_are_relocated(tmp_path: Path) -> None:
    """A kernel of Triton below vLLM's cache names the job's path there; vLLM's own entries stay."""
    files = below(f"{RANK}/triton_cache/", triton_kernel("3.9")) | VLLM
    for name, content in files.items():
        (tmp_path / "vllm" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "vllm" / name).write_bytes(content)
    key = next(iter(triton_kernel("3.9"))).partition("/")[0]
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        relocate("vllm", fd, "/job", [PART, f"{RANK}/triton_cache/{key}"])
    finally:
        os.close(fd)
    group = json.loads((tmp_path / f"vllm/{RANK}/triton_cache/{key}/__grp__add_kernel.json").read_bytes())
    assert group["child_paths"]["add_kernel.cubin"] == f"/job/vllm/{RANK}/triton_cache/{key}/add_kernel.cubin"
    assert all((tmp_path / "vllm" / name).read_bytes() == content for name, content in VLLM.items())
