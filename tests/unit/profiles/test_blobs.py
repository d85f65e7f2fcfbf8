"""Caches whose formats nobody has published: what can be proved of them, and that it is little."""

from __future__ import annotations

import pytest

from tests.support.judging import Judge
from warmstart.profiles import registry

RTX = "runtime_cache.bin"
KERNEL = "a/f/0123456789abcdef"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"RTX" * 5000, None),
        (b"x", None),
        (b"", "blob-empty"),
        (bytes(100), "blob-zeroes"),
        (b"RTX" + bytes(4096), "blob-zeroes"),
        (b"RTX" + bytes(4095), None),
        (bytes(9000) + b"x", None),
    ],
)
def test_a_runtime_cache(verdict: Judge, content: bytes, reason: str | None) -> None:
    """Bytes up to the end, and no more can be said."""
    assert verdict("trt-rtx", {RTX: content}) == reason


def test_the_drivers_cache(verdict: Judge) -> None:
    """The index and the kernels, none of them empty."""
    assert verdict("cuda-computecache", {"index": b"i", KERNEL: b"k"}) is None


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"index": b"i"}, "incomplete"),
        ({KERNEL: b"k"}, "incomplete"),
        ({"index": b"i", KERNEL: b""}, "blob-empty"),
        ({"index": b"", KERNEL: b"k"}, "blob-empty"),
    ],
)
def test_what_the_driver_did_not_finish(verdict: Judge, files: dict[str, bytes], reason: str) -> None:
    """All or nothing."""
    assert verdict("cuda-computecache", files) == reason


def test_both_keep_the_newest() -> None:
    """They are the only ones: all others publish an entry once."""
    newest = {name for name in registry.names() if registry.get(name).keeps == "newest"}
    assert newest == {"trt-rtx", "cuda-computecache"}
    assert {name for name in registry.names() if registry.get(name).lock} == {"trt-rtx"}
    assert {name for name in registry.names() if registry.get(name).after_success} == {"cuda-computecache"}
