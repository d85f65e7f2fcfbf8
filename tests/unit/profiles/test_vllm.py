"""vLLM's entries: its own, and other tools' below them."""

from __future__ import annotations

import ast
import hashlib
import json
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.built_entries import ARTIFACT, PART, RANK, SHARED, VLLM, VLLM_INDEX, VLLM_SAVED, below
from tests.support.cache_files import STEM, cubin, torch_artifact, triton_kernel
from tests.support.judging import SAME_STAGE, Judge
from warmstart.profiles import registry
from warmstart.profiles.entry_files import REASONS

CHOICES = f"flashinfer_autotune_cache/0.7.2/90a/{'a' * 64}/autotune_configs.json"
CHOSEN = json.dumps({"_metadata": {"gpu": "x"}, "('op', ())": ["Runner", 3], "_generation": "0"}).encode()
IDENTITY = {"heads": 8, "kv": [1, 2.5], "dtype": "bf16"}
SEGMENTED = f"rocm_segmented_attention/{hashlib.sha256(json.dumps(IDENTITY, sort_keys=True).encode()).hexdigest()}.json"
TUNED = json.dumps({"identity": IDENTITY, "records": [{"workload": [1, 2, 3], "best": {}}]}).encode()
MODEL = f"torch_compile_cache/torch_aot_compile/{'a' * 64}/rank_0_0/model"


@pytest.mark.parametrize(
    "files",
    [
        VLLM,
        VLLM | {f"{PART}/{ARTIFACT}": torch_artifact(b"AOTCompiledArtifact", b"torch key", b"pickle")},
        {MODEL: pickle.dumps({"a": 1}, protocol=4)},
        {CHOICES: CHOSEN},
        {SEGMENTED: TUNED},
        below(f"{RANK}/triton_cache/", triton_kernel("3.9")),
        below(f"{RANK}/inductor_cache/", {f"{STEM}.main.cpp": b"int x;", f"{STEM}.main.so": SHARED}),
        below("deep_gemm/cache/kernel.a.01234567/", {"kernel.cu": b"x", "kernel.cubin": cubin()}),
    ],
)
def test_whole_entries_are_valid(verdict: Judge, files: dict[str, bytes]) -> None:
    """Own entries, and other tools' judged by their own profiles."""
    assert verdict("vllm", files) is None


# As vLLM 0.33 names directories: by `prefix or model_tag`, of encoders by the class, any of transformers' too.
CLASSES = (
    "backbone", "eagle_head", "InternVisionEncoderLayer", "Qwen2_5_VisionPatchEmbed", "Qwen2_5_VisionPatchMerger",
    "Qwen3_VisionBlock", "TransformerBlock", "Llama4VisionEncoderLayer", "SiglipEncoderLayer", "_Block2",
)  # fmt: skip


@pytest.mark.report
@pytest.mark.parametrize("part", CLASSES)
def test_a_part_has_the_name_of_a_class(verdict: Judge, part: str) -> None:
    """All of a model comes back, or an encoder is compiled in each job, and it looks warm."""
    files = {name.replace(PART, f"{RANK}/{part}"): content for name, content in VLLM.items()}
    assert {registry.get("vllm").entry_of(name) for name in files} == {f"{RANK}/{part}"}
    assert verdict("vllm", files) is None


@pytest.mark.parametrize("part", ["inductor_cache", "triton_cache", "-x", "a.b", ".x", "x" * 151, ""])
def test_other_directories_of_a_rank_are_no_parts(part: str) -> None:
    """Some are other tools' caches."""
    assert registry.get("vllm").entry_of(f"{RANK}/{part}/vllm_compile_cache.py") is None


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({f"{PART}/{ARTIFACT}": VLLM_SAVED}, "incomplete"),
        ({f"{PART}/vllm_compile_cache.py": VLLM_INDEX}, "incomplete"),
        (VLLM | {f"{PART}/vllm_compile_cache.py": b"{}"}, "incomplete"),
        (VLLM | {f"{PART}/vllm_compile_cache.py": VLLM_INDEX[:-3]}, "literal-malformed"),
        (VLLM | {f"{PART}/vllm_compile_cache.py": b"[" * 100_000}, "literal-malformed"),
        (VLLM | {f"{PART}/vllm_compile_cache.py": b"__import__('os')"}, "literal-malformed"),
        (VLLM | {f"{PART}/{ARTIFACT}": VLLM_SAVED[:-1]}, "hash-differs"),
        (VLLM | {f"{PART}/{ARTIFACT}": b""}, "hash-differs"),
        (VLLM | {f"{PART}/{ARTIFACT}": torch_artifact(b"Other", b"x")}, "field-malformed"),
        (VLLM | {f"{PART}/{ARTIFACT}": torch_artifact(b"CacheCompiledArtifact", b"x")}, "field-malformed"),
        (VLLM | {f"{PART}/computation_graph.py": b""}, "text-malformed"),
        ({MODEL: pickle.dumps({"a": 1}, protocol=4)[:-1]}, "pickle-truncated"),
        ({CHOICES: CHOSEN[:-1]}, "json-malformed"),
        ({CHOICES: b'{"_metadata": {}}'}, "field-malformed"),
        ({CHOICES: b'{"_metadata": {}, "op": [3, 3]}'}, "field-malformed"),
        ({SEGMENTED: TUNED[:-1]}, "json-malformed"),
        ({SEGMENTED: TUNED.replace(b"bf16", b"fp16")}, "name-not-hash"),
        ({SEGMENTED: b'{"identity": {}}'}, "field-malformed"),
    ],
)
def test_what_the_tool_would_stumble_on_is_refused(verdict: Judge, files: dict[str, bytes], reason: str) -> None:
    """Indexes without their artifacts, checksums that differ, models that are cut short."""
    assert verdict("vllm", files) == reason


@SAME_STAGE
@given(st.text("{}()[],: '\"ab01None\n", max_size=40))
def test_any_index_is_read_or_refused_as_python_does(verdict: Judge, text: str) -> None:
    """What our reader takes for a dictionary, Python takes, too; nothing makes it fail."""
    answer = verdict("vllm", VLLM | {f"{PART}/vllm_compile_cache.py": text.encode()})
    assert answer in {None, *REASONS} - {"validator-failed"}
    if answer != "literal-malformed":
        assert isinstance(ast.literal_eval(text.strip()), dict)
