"""SGLang's entries: its own, and other tools' below them."""

from __future__ import annotations

import json

import pytest

from tests.lib.built_entries import RANK, SGLANG, SGLANG_LEAF, SGLANG_ROWS, SHARED, below
from tests.lib.cache_files import relocatable, triton_kernel
from tests.lib.judging import Judge


@pytest.mark.parametrize(
    "files",
    [
        SGLANG,
        {f"cute_aot/{'a' * 64}.o": relocatable()},
        below("triton/", triton_kernel("3.4")),
        below(f"{RANK}/triton_cache/", triton_kernel("3.4")),
    ],
)
def test_whole_entries_are_valid(verdict: Judge, files: dict[str, bytes]) -> None:
    """Modules, objects, and other tools' entries judged by their own profiles."""
    assert verdict("sglang", files) is None


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({f"{SGLANG_LEAF}/sgl_deps.json": SGLANG[f"{SGLANG_LEAF}/sgl_deps.json"]}, "incomplete"),
        (SGLANG | {f"{SGLANG_LEAF}/sgl_kernel_x.so": SHARED[:-1]}, "elf-truncated"),
        (SGLANG | {f"{SGLANG_LEAF}/sgl_deps.json": json.dumps(SGLANG_ROWS[:1]).encode()}, "name-not-hash"),
        (SGLANG | {f"{SGLANG_LEAF}/sgl_deps.json": b'{"a": 1}'}, "json-malformed"),
        (SGLANG | {f"{SGLANG_LEAF}/sgl_deps.json": b"[[1]]"}, "json-malformed"),
        ({f"cute_aot/{'a' * 64}.o": b""}, "elf-truncated"),
    ],
)
def test_what_the_tool_would_stumble_on_is_refused(verdict: Judge, files: dict[str, bytes], reason: str) -> None:
    """Lists of other modules, and libraries or objects that are cut short."""
    assert verdict("sglang", files) == reason
