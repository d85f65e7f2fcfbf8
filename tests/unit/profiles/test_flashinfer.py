"""FlashInfer's kernels, built by ninja, and their generated sources."""

from __future__ import annotations

import pytest

from tests.lib.built_entries import BUILT, BUILT_ELSEWHERE, NINJA_LOG, OPS, operation
from tests.lib.cache_files import of_tool, relocatable
from tests.lib.judging import Judge
from warmstart.profiles import registry


def test_an_operation_is_its_build(verdict: Judge) -> None:
    """With library, objects, ninja's log and dependencies."""
    assert verdict("flashinfer", operation(BUILT)) is None


def test_an_operation_that_was_killed_is_refused(verdict: Judge) -> None:
    """As ninja's other builds are."""
    assert verdict("flashinfer", operation({**BUILT, ".ninja_log": NINJA_LOG[:-1]})) == "build-unfinished"


@pytest.mark.parametrize("changes", BUILT_ELSEWHERE)
def test_what_was_built_at_a_runs_own_path_is_refused(verdict: Judge, changes: dict[str, bytes]) -> None:
    """Nobody has that path again; kept, it would keep those out that were built at the constant path."""
    assert verdict("flashinfer", operation({**BUILT, **changes})) == "made-elsewhere"


@pytest.mark.parametrize("name", ["silu_and_mul.cu", "batch/x.cu", "trtllm_export/gemm/a/x.h"])
def test_a_generated_source_is_an_entry(verdict: Judge, name: str) -> None:
    """Its name does not say whose it is, and ninja builds what it belongs to again unless it comes back."""
    assert verdict("flashinfer", {f"{OPS}/generated/{name}": b"x"}) is None
    assert verdict("flashinfer", {f"{OPS}/generated/{name}": b""}) == "text-malformed"


TWICE = {name: content for name, content in of_tool("flashinfer").items() if "_cute_dsl/" in name}
MODULE = next(iter(TWICE)).rpartition("/")[0]
((CHOICE, CHOSEN),) = (item for item in of_tool("flashinfer").items() if "/autotune/" in item[0])
META = TWICE[f"{MODULE}/meta.json"]


DOWNLOAD = f".cache/flashinfer/cubins/{'a' * 40}/fmha/x.cubin"


def test_a_download_is_taken_unless_it_was_not_written_to_its_end(verdict: Judge) -> None:
    """FlashInfer compares its SHA-256, and fetches it again."""
    assert verdict("flashinfer", {DOWNLOAD: b"anything"}) is None
    assert verdict("flashinfer", {DOWNLOAD: b""}) == "blob-empty"
    assert verdict("flashinfer", {DOWNLOAD: b"any" + bytes(8192)}) == "blob-zeroes"


@pytest.mark.parametrize("files", [TWICE, {CHOICE: CHOSEN}], ids=["kernels", "choice"])
def test_what_flashinfer_wrote_is_valid(verdict: Judge, files: dict[str, bytes]) -> None:
    """Two kernels of CuTe DSL with their metadata, and what its autotuner chose."""
    assert verdict("flashinfer", files) is None


@pytest.mark.report
@pytest.mark.parametrize(
    "files",
    [
        operation(BUILT),
        {f"{OPS}/generated/trtllm_export/x.h": b"x"},
        {DOWNLOAD: b"anything"},
        TWICE,
        {CHOICE: CHOSEN},
    ],
    ids=["operation", "source", "download", "kernels", "choice"],
)
def test_a_rank_has_a_workspace_of_its_own(verdict: Judge, files: dict[str, bytes]) -> None:
    """As TensorRT-LLM gives its ranks: all of it comes back, and is judged as what ranks share."""
    of_rank = {f"rank-13/{name}": content for name, content in files.items()}
    entry_of = registry.get("flashinfer").entry_of
    assert {entry_of(name) for name in of_rank} == {f"rank-13/{entry_of(name)}" for name in files}
    assert verdict("flashinfer", of_rank) is None
    refused = [verdict("flashinfer", dict.fromkeys(names, b"")) for names in (of_rank, files)]
    assert refused[0] == refused[1] is not None


@pytest.mark.parametrize("rank", ["rank-", "rank-x", "rank_1", "rank-1/rank-2", f"rank-{'1' * 7}"])
def test_other_directories_are_no_ranks(rank: str) -> None:
    """Nobody makes them."""
    assert registry.get("flashinfer").entry_of(f"{rank}/{DOWNLOAD}") is None


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("meta.json", META[:-3], "json-malformed"),
        ("meta.json", META.replace(b"sm90a", b"sm100a"), "field-malformed"),
        ("meta.json", META.replace(b'"source_sha256": "', b'"source_sha256": "x'), "field-malformed"),
        ("meta.json", b'{"arch": "sm90a", "cute_dsl_version": 4}', "field-malformed"),
        ("n512.o", b"", "elf-truncated"),
        ("n512.o", TWICE[f"{MODULE}/n512.o"][:-1], "elf-truncated"),
        ("n512.o", TWICE[f"{MODULE}/n1024.o"], "other-function"),
        ("n512.o", relocatable(), "other-function"),
        ("n512.so", b"", "unexpected-file"),
        ("build.ninja", b"x", "unexpected-file"),
    ],
)
def test_a_damaged_or_mixed_module_is_refused(verdict: Judge, name: str, content: bytes, reason: str) -> None:
    """Metadata of another architecture, objects that were cut short or hold another kernel."""
    assert verdict("flashinfer", {**TWICE, f"{MODULE}/{name}": content}) == reason


def test_a_module_is_metadata_and_kernels(verdict: Judge) -> None:
    """Metadata are written last, so without them a job was killed; alone they are nothing."""
    assert verdict("flashinfer", {f"{MODULE}/n512.o": TWICE[f"{MODULE}/n512.o"]}) == "incomplete"
    assert verdict("flashinfer", {f"{MODULE}/meta.json": META}) == "incomplete"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "json-malformed"),
        (CHOSEN.replace(b"twice", b"thrice"), "name-not-hash"),
        (CHOSEN.replace(b'"tactic"', b'"tactics"'), "field-malformed"),
        (b"[]", "json-malformed"),
    ],
)
def test_a_choice_that_flashinfer_would_pass_over_is_refused(verdict: Judge, content: bytes, reason: str) -> None:
    """One of another key."""
    assert verdict("flashinfer", {CHOICE: content}) == reason
