"""JAX's executables: compressed data to its end (the formats themselves are in formats/test_compressed)."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lib.cache_files import CONTENT, ZSTD, zstd
from tests.lib.judging import SAME_STAGE, Judge
from warmstart.profiles.entry_files import REASONS

EXECUTABLE = f"jit__lambda-{'0' * 64}-cache"


@pytest.mark.parametrize(
    "files",
    [
        {EXECUTABLE: zlib.compress(CONTENT)},
        {EXECUTABLE: zstd(b"0123456789")},
        {EXECUTABLE: zstd(b"01234", b"56789")},
        {EXECUTABLE: ZSTD},
    ],
)
def test_whole_entries_are_valid(verdict: Judge, files: dict[str, bytes]) -> None:
    """A zlib stream, or a zstd frame of one or more blocks."""
    assert verdict("jax", files) is None


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({EXECUTABLE: b""}, "compressed-malformed"),
        ({EXECUTABLE: zlib.compress(b"\0\0\0\7")}, "compressed-malformed"),
        ({EXECUTABLE: zlib.compress(CONTENT) + b"\0"}, "compressed-malformed"),
        ({EXECUTABLE: zlib.compress(CONTENT)[:-1]}, "compressed-malformed"),
        ({EXECUTABLE: b"plain"}, "compressed-malformed"),
        ({EXECUTABLE: zstd(b"0123456789")[:-1]}, "compressed-malformed"),
        ({EXECUTABLE: zstd(b"0123456789") + b"\0"}, "compressed-malformed"),
        ({EXECUTABLE: zstd(b"0123", header=b"\x24\x04")}, "compressed-malformed"),
        ({EXECUTABLE: zstd(b"0123456789", header=b"\x2c\x0a")}, "compressed-malformed"),
        ({EXECUTABLE: b"\x28\xb5\x2f\xfd\x24\x0a" + b"\xff\xff\xff"}, "compressed-malformed"),
        ({EXECUTABLE: b"\x28\xb5\x2f\xfd"}, "compressed-malformed"),
        ({EXECUTABLE: ZSTD[:-1] + b"\0"}, "compressed-malformed"),
        ({EXECUTABLE: ZSTD[:-4] + bytes(4)}, "compressed-malformed"),
    ],
)
def test_what_the_tool_would_stumble_on_is_refused(verdict: Judge, files: dict[str, bytes], reason: str) -> None:
    """Data that is damaged, cut short or followed by more, or too little to be an executable."""
    assert verdict("jax", files) == reason


def test_a_bomb_is_refused_before_it_is_inflated(verdict: Judge, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream that grows without end stops at a bound."""
    from warmstart.profiles.formats import compressed

    monkeypatch.setattr(compressed, "MOST_INFLATED", 1 << 20)
    assert verdict("jax", {EXECUTABLE: zlib.compress(bytes(8 << 20))}) == "too-large"


@SAME_STAGE
@given(at=st.integers(0), value=st.integers(1, 255))
def test_a_changed_zlib_stream_is_found_or_says_the_same(verdict: Judge, at: int, value: int) -> None:
    """The stream's own checksum covers all of the content; other bits of the header and padding change nothing."""
    whole = zlib.compress(CONTENT)
    content = bytearray(whole)
    content[at % len(content)] ^= value
    answer = verdict("jax", {EXECUTABLE: bytes(content)})
    assert answer == "compressed-malformed" or (answer is None and zlib.decompress(content) == CONTENT)


@SAME_STAGE
@given(st.binary(max_size=64))
def test_any_frame_gets_a_documented_reason(verdict: Judge, content: bytes) -> None:
    """Arbitrary bytes after zstd's magic end in a verdict in fixed words."""
    assert verdict("jax", {EXECUTABLE: b"\x28\xb5\x2f\xfd" + content}) in {None, *REASONS} - {"validator-failed"}
