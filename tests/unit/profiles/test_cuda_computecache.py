"""The CUDA driver's cache: all of it or nothing, and none of it empty."""

from __future__ import annotations

import pytest

from tests.support.judging import Judge

KERNEL = "a/f/0123456789abcdef"


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
