"""An extension that tvm-ffi and ninja built."""

from __future__ import annotations

import pytest

from tests.lib.cache_files import of_tool
from tests.lib.judging import Judge

BUILT = of_tool("tvm-ffi")
DIRECTORY = next(iter(BUILT)).partition("/")[0]


def test_what_tvm_ffi_built_is_valid(verdict: Judge) -> None:
    """All files of one directory are one entry."""
    assert len(BUILT) == 6
    assert verdict("tvm-ffi", BUILT) is None


@pytest.mark.parametrize("name", ["answer.so", "cpp_0.o", "build.ninja", ".ninja_log"])
def test_a_build_without_one_of_its_files_is_refused(verdict: Judge, name: str) -> None:
    """Sources and dependencies alone may be missing: ninja then builds again, or needs none."""
    assert verdict("tvm-ffi", {other: BUILT[other] for other in BUILT if not other.endswith(name)}) == "incomplete"


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("answer.so", BUILT[f"{DIRECTORY}/answer.so"][:-1], "elf-truncated"),
        ("answer.so", b"", "elf-truncated"),
        (".ninja_log", b"# ninja log v7\n", "build-unfinished"),
        ("build.ninja", b"build x: /var/tmp/warmstart/n1/17.0a1b2c3d/cache/tvm-ffi/x.cpp\n", "made-elsewhere"),
        ("main.cpp", b"", "text-malformed"),
        ("kernel.cubin", b"", "elf-truncated"),
    ],
)
def test_an_unfinished_build_is_refused(verdict: Judge, name: str, content: bytes, reason: str) -> None:
    """As ninja's other builds are."""
    assert verdict("tvm-ffi", {**BUILT, f"{DIRECTORY}/{name}": content}) == reason
