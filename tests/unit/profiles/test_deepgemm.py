"""DeepGEMM's kernels: source and cubin, both whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lib.built_entries import GEMM, KERNEL, SHARED
from tests.lib.cache_files import cubin
from tests.lib.judging import SAME_STAGE, Judge
from warmstart.profiles.entry_files import REASONS


@pytest.mark.parametrize(
    "files",
    [
        GEMM,
        GEMM | {f"{KERNEL}/kernel.sass": b"MOV R1"},
    ],
)
def test_whole_entries_are_valid(verdict: Judge, files: dict[str, bytes]) -> None:
    """In the form that the tool writes, with and without debug options."""
    assert verdict("deepgemm", files) is None


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({f"{KERNEL}/kernel.cu": b"x"}, "incomplete"),
        ({f"{KERNEL}/kernel.cubin": cubin()}, "incomplete"),
        (GEMM | {f"{KERNEL}/kernel.cubin": cubin()[:-9]}, "elf-truncated"),
        (GEMM | {f"{KERNEL}/kernel.cubin": SHARED}, "elf-malformed"),
        (GEMM | {f"{KERNEL}/kernel.cubin": cubin().replace(b".text.", b".tuxt.")}, "other-target"),
        (GEMM | {f"{KERNEL}/kernel.cu": b""}, "text-malformed"),
    ],
)
def test_what_the_tool_would_stumble_on_is_refused(verdict: Judge, files: dict[str, bytes], reason: str) -> None:
    """A file that is missing, cut short, or for another purpose."""
    assert verdict("deepgemm", files) == reason


@SAME_STAGE
@given(at=st.integers(0), value=st.integers(0, 255))
def test_a_changed_cubin_gets_a_documented_reason(verdict: Judge, at: int, value: int) -> None:
    """Damage anywhere in a cubin ends in a verdict in fixed words."""
    content = bytearray(GEMM[f"{KERNEL}/kernel.cubin"])
    content[at % len(content)] = value
    answer = verdict("deepgemm", GEMM | {f"{KERNEL}/kernel.cubin": bytes(content)})
    assert answer in {None, *REASONS} - {"validator-failed"}
