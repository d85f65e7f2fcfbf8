"""HybridEP's kernels, one as NeMo Automodel stored it; g++ built it in nvcc's place."""

from __future__ import annotations

import pytest

from tests.lib.built_entries import SHARED
from tests.lib.cache_files import of_tool, relocatable
from tests.lib.judging import Judge

((NAME, KERNEL),) = of_tool("hybrid-ep").items()


def test_what_automodel_stored_is_valid(verdict: Judge) -> None:
    """The library of one kernel is an entry."""
    assert verdict("hybrid-ep", {NAME: KERNEL}) is None


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "elf-truncated"),
        (KERNEL[:9000], "elf-truncated"),
        (SHARED, "other-function"),
        (KERNEL.replace(b"get_function_ptr\0", b"get_function_ptx\0"), "other-function"),
        (relocatable(defined=[b"get_function_ptr"]), "elf-malformed"),
    ],
)
def test_what_would_end_a_job_is_refused(verdict: Judge, content: bytes, reason: str) -> None:
    """Each rank loads all libraries of the cache at its start."""
    assert verdict("hybrid-ep", {NAME: content}) == reason
