"""zlib streams and zstd frames, read to their last byte."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lib.cache_files import ZSTD, zstd
from tests.lib.judging import SAME_STAGE, Reason
from warmstart.profiles.entry_files import EntryFiles
from warmstart.profiles.formats import compressed

MALFORMED = "compressed-malformed"


def check(files: EntryFiles) -> None:
    compressed.check(files, "f", least=1)


@SAME_STAGE
@given(st.binary(min_size=1, max_size=3000), st.integers(0, 9), st.binary(max_size=3))
def test_a_stream_is_one_whole_stream(reason: Reason, content: bytes, level: int, more: bytes) -> None:
    stream = zlib.compress(content, level)
    assert reason({"f": stream + more}, check) == (MALFORMED if more else None)
    assert reason({"f": stream[:-1]}, check) == MALFORMED


@SAME_STAGE
@given(st.lists(st.binary(max_size=200), min_size=1, max_size=4), st.booleans())
def test_a_frame_is_walked_block_by_block(reason: Reason, blocks: list[bytes], has_size: bool) -> None:
    """With its content's size or without; every truncation is found."""
    size = sum(map(len, blocks))
    header = b"\xa4" + size.to_bytes(4, "little") if has_size else b"\x04\x58"
    frame = zstd(*blocks, header=header)
    assert reason({"f": frame}, check) == (MALFORMED if has_size and not size else None)
    for length in (0, 3, 4, len(frame) // 2, len(frame) - 1):
        assert reason({"f": frame[:length]}, check) == MALFORMED


@SAME_STAGE
@given(st.integers(0, len(ZSTD) - 1))
def test_a_compressed_block_is_not_cut(reason: Reason, length: int) -> None:
    assert reason({"f": ZSTD}, check) is None
    assert reason({"f": ZSTD[:length]}, check) == MALFORMED


def test_a_frame_that_grows_a_byte_is_one_block(reason: Reason) -> None:
    frame = b"\x28\xb5\x2f\xfd\x20\x64" + (100 << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"x"
    assert reason({"f": frame}, check) is None
    assert reason({"f": frame + b"x"}, check) == MALFORMED


@pytest.mark.parametrize("least", [0, 5, 6])
def test_how_much_there_has_to_be(reason: Reason, least: int) -> None:
    found = reason({"f": zlib.compress(b"12345")}, lambda files: compressed.check(files, "f", least=least))
    assert found == (MALFORMED if least > 5 else None)


def test_inflating_ends_at_a_bound(reason: Reason, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compressed, "MOST_INFLATED", 1000)
    assert reason({"f": zlib.compress(bytes(1000))}, check) is None
    assert reason({"f": zlib.compress(bytes(1001))}, check) == "too-large"
