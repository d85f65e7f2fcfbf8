"""CuTe DSL's objects in QuACK's and FlashAttention 4's caches, as both wrote them without a GPU."""

from __future__ import annotations

import pytest

from tests.lib.cache_files import of_tool, relocatable
from tests.lib.judging import Judge

ENTRIES = of_tool("cute-dsl")
QUACK = next(name for name in ENTRIES if name.startswith("quack/"))
TIMINGS = f"quack/{'A2' * 26}/gemm.autotune.json"


@pytest.mark.parametrize("name", ENTRIES)
def test_what_the_tools_wrote_is_valid(verdict: Judge, name: str) -> None:
    """Each object is an entry."""
    assert verdict("cute-dsl", {name: ENTRIES[name]}) is None


def test_quacks_timings_are_valid(verdict: Judge) -> None:
    """They are what Triton's autotuner keeps."""
    assert verdict("cute-dsl", {TIMINGS: b'{"key": [1], "configs_timings": [[{"tile": 128}, [0.1]]]}'}) is None


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        (QUACK, b"", "elf-truncated"),
        (QUACK, ENTRIES[QUACK][:-1], "elf-truncated"),
        (QUACK, ENTRIES[QUACK].replace(b"__tvm_ffi_func\0", b"__tvm_ffi_fund\0"), "other-function"),
        (QUACK, relocatable(), "other-function"),
        (QUACK, relocatable(undefined=[b"__tvm_ffi_func"]), "other-function"),
        (TIMINGS, b"{}", "field-malformed"),
        (TIMINGS, b"{", "json-malformed"),
    ],
)
def test_what_the_tools_would_not_load_is_refused(verdict: Judge, name: str, content: bytes, reason: str) -> None:
    """An object that was cut short, or that lacks the function that they call."""
    assert verdict("cute-dsl", {name: content}) == reason


def test_no_truncated_object_passes(verdict: Judge) -> None:
    """The section headers are last: cut anywhere, some are lost."""
    content = ENTRIES[QUACK]
    for length in range(0, len(content), 97):
        assert verdict("cute-dsl", {QUACK: content[:length]}) == "elf-truncated"
