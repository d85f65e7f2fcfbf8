"""CuPy's kernels, as CuPy and NVRTC wrote them without a GPU: each begins with its own SHA-1."""

from __future__ import annotations

import hashlib
import random

import pytest

from tests.lib.cache_files import of_tool
from tests.lib.judging import Judge

ENTRIES = of_tool("cupy")


@pytest.mark.parametrize("name", ENTRIES)
def test_what_cupy_wrote_is_valid(verdict: Judge, name: str) -> None:
    """A kernel, a template's kernel behind its mangled names, and LTO code."""
    assert verdict("cupy", {name: ENTRIES[name]}) is None


@pytest.mark.parametrize("name", ENTRIES)
def test_every_change_is_found(verdict: Judge, name: str) -> None:
    """Any bit, any length."""
    dice, content = random.Random(3), ENTRIES[name]
    for _ in range(100):
        at = dice.randrange(len(content))
        flipped = content[:at] + bytes([content[at] ^ 1 << dice.randrange(8)]) + content[at + 1 :]
        assert verdict("cupy", {name: flipped}) == "hash-differs"
        assert verdict("cupy", {name: content[:at]}) == "hash-differs"


def test_a_hash_of_nothing_is_no_kernel(verdict: Judge) -> None:
    """CuPy would hand it to the driver."""
    assert verdict("cupy", {f"{'a' * 40}.cubin": hashlib.sha1(b"").hexdigest().encode()}) == "hash-differs"
