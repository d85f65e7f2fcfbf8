"""TensorRT-RTX's runtime cache: what can be proved of a format that nobody has published is little."""

from __future__ import annotations

import pytest

from tests.lib.judging import Judge

RTX = "runtime_cache.bin"


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
