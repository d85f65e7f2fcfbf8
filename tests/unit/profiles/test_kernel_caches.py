"""DeepGEMM's, TileLang's and JAX's entries: both files, the manifest's hashes, compressed data to its end."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.built_entries import GEMM, KERNEL, SHARED, SOURCES, TILE, tile, tile_manifest
from tests.support.cache_files import cubin
from tests.support.judging import SAME_STAGE, Judge
from warmstart.profiles.entry_files import REASONS

EXECUTABLE = f"jit__lambda-{'0' * 64}-cache"
# What libzstd makes of 494 bytes: one compressed block with sequences, no checksum.
ZSTD = b"\x28\xb5\x2f\xfd\x60\xee\x00\x1d\x02\x00\x74\x03\x00\x00\x00\x07executable " + bytes(range(40))
ZSTD += bytes.fromhex("0200c05e5ba96ab5d401")
CONTENT = b"\0\0\0\7" + b"executable" * 500


def zstd(*blocks: bytes, header: bytes = b"\x24\x0a", last: bytes = b"\xaa\xbb\xcc\xdd") -> bytes:
    """Return a zstd frame of raw blocks with a checksum; its content is ten bytes long (RFC 8878, 3.1.1)."""
    data = b"\x28\xb5\x2f\xfd" + header
    for number, block in enumerate(blocks, 1):
        data += (len(block) << 3 | (number == len(blocks))).to_bytes(3, "little") + block
    return data + last


@pytest.mark.parametrize(
    ("profile", "files"),
    [
        ("deepgemm", GEMM),
        ("deepgemm", GEMM | {f"{KERNEL}/kernel.sass": b"MOV R1"}),
        ("tilelang", tile(SOURCES)),
        ("jax", {EXECUTABLE: zlib.compress(CONTENT)}),
        ("jax", {EXECUTABLE: zstd(b"0123456789")}),
        ("jax", {EXECUTABLE: zstd(b"01234", b"56789")}),
        ("jax", {EXECUTABLE: ZSTD}),
    ],
)
def test_whole_entries_are_valid(verdict: Judge, profile: str, files: dict[str, bytes]) -> None:
    """Each kind of entry in the form that the tool writes."""
    assert verdict(profile, files) is None


@pytest.mark.parametrize(
    ("profile", "files", "reason"),
    [
        ("deepgemm", {f"{KERNEL}/kernel.cu": b"x"}, "incomplete"),
        ("deepgemm", {f"{KERNEL}/kernel.cubin": cubin()}, "incomplete"),
        ("deepgemm", GEMM | {f"{KERNEL}/kernel.cubin": cubin()[:-9]}, "elf-truncated"),
        ("deepgemm", GEMM | {f"{KERNEL}/kernel.cubin": SHARED}, "elf-malformed"),
        ("deepgemm", GEMM | {f"{KERNEL}/kernel.cubin": cubin().replace(b".text.", b".tuxt.")}, "other-target"),
        ("deepgemm", GEMM | {f"{KERNEL}/kernel.cu": b""}, "text-malformed"),
        ("tilelang", {f"{TILE}/params.json": b"{}"}, "incomplete"),
        ("tilelang", tile(SOURCES | {"params.json": b'{"x": [2]}'}), "hash-differs"),
        ("tilelang", tile(SOURCES | {"params.json": b""}), "hash-differs"),
        ("tilelang", tile({"params.json": SOURCES["params.json"]}), "incomplete"),
        ("tilelang", tile(SOURCES | {"extra.json": b"{}"}), "unexpected-file"),
        ("tilelang", tile(SOURCES, tile_manifest(SOURCES, version=2)), "field-malformed"),
        ("tilelang", tile(SOURCES, tile_manifest(SOURCES, files={})), "field-malformed"),
        ("tilelang", tile({"a.json": b""}, tile_manifest({}, files={"a.json": "sha256"})), "field-malformed"),
        ("tilelang", tile({"k.so": b"x"}, tile_manifest({"k.so": b"x"})), "elf-truncated"),
        ("jax", {EXECUTABLE: b""}, "compressed-malformed"),
        ("jax", {EXECUTABLE: zlib.compress(b"\0\0\0\7")}, "compressed-malformed"),
        ("jax", {EXECUTABLE: zlib.compress(CONTENT) + b"\0"}, "compressed-malformed"),
        ("jax", {EXECUTABLE: zlib.compress(CONTENT)[:-1]}, "compressed-malformed"),
        ("jax", {EXECUTABLE: b"plain"}, "compressed-malformed"),
        ("jax", {EXECUTABLE: zstd(b"0123456789")[:-1]}, "compressed-malformed"),
        ("jax", {EXECUTABLE: zstd(b"0123456789") + b"\0"}, "compressed-malformed"),
        ("jax", {EXECUTABLE: zstd(b"0123", header=b"\x24\x04")}, "compressed-malformed"),
        ("jax", {EXECUTABLE: zstd(b"0123456789", header=b"\x2c\x0a")}, "compressed-malformed"),
        ("jax", {EXECUTABLE: b"\x28\xb5\x2f\xfd\x24\x0a" + b"\xff\xff\xff"}, "compressed-malformed"),
        ("jax", {EXECUTABLE: b"\x28\xb5\x2f\xfd"}, "compressed-malformed"),
        ("jax", {EXECUTABLE: ZSTD[:-1] + b"\0"}, "compressed-malformed"),
        ("jax", {EXECUTABLE: ZSTD[:-4] + bytes(4)}, "compressed-malformed"),
    ],
)
def test_what_a_tool_would_stumble_on_is_refused(
    verdict: Judge, profile: str, files: dict[str, bytes], reason: str
) -> None:
    """Missing files, hashes that differ, data that is cut short or followed by more."""
    assert verdict(profile, files) == reason


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


@SAME_STAGE
@given(at=st.integers(0), value=st.integers(0, 255))
def test_a_changed_cubin_gets_a_documented_reason(verdict: Judge, at: int, value: int) -> None:
    """Damage anywhere in a cubin ends in a verdict in fixed words."""
    content = bytearray(GEMM[f"{KERNEL}/kernel.cubin"])
    content[at % len(content)] = value
    answer = verdict("deepgemm", GEMM | {f"{KERNEL}/kernel.cubin": bytes(content)})
    assert answer in {None, *REASONS} - {"validator-failed"}
