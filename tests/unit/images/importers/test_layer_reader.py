"""Reading one layer: the forms of headers that programs have written, and what counts."""

from __future__ import annotations

import hashlib
import tarfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.lib.tar_headers import (
    BLOCK,
    END,
    GNU,
    V7,
    base256,
    header,
    long_name,
    padded,
    pax,
    record,
    summed,
    zstd,
)
from warmstart.images.importers import layer_reader
from warmstart.images.importers.layer_reader import (
    Budget,
    Entry,
    ImageBounds,
    InvalidImage,
    LayerArchive,
    LayerReader,
)

BOUNDS = ImageBounds(8 << 20, 100)


def read(directory: Path, data: bytes, blob: bytes | None = None, bounds: ImageBounds = BOUNDS) -> Sequence[Entry]:
    """Return the entries of an archive, in the form of a blob."""
    (directory / "layer").write_bytes(data if blob is None else blob)
    layer = LayerArchive(str(directory / "layer"), f"sha256:{hashlib.sha256(data).hexdigest()}")
    return list(LayerReader(layer, Budget(bounds)).entries())


def only(directory: Path, data: bytes) -> Entry:
    (entry,) = read(directory, data)
    return entry


NAMES = {
    "ustar": (header(b"f", prefix=b"d"), b"d/f"),
    "star": (summed(header(b"f", prefix=b"d" * 131 + b"1" * 24)[:508] + b"tar\0"), b"d" * 131 + b"/f"),
    "GNU": (header(b"f", magic=GNU), b"f"),
    "GNU with times in place of a prefix": (header(b"f", prefix=b"00000001750\0" * 2, magic=GNU), b"f"),
    "Go before 1.8": (header(b"f", prefix=b"some/directory", magic=GNU), b"some/directory/f"),
    "Unix of 1979": (header(b"f", prefix=b"d", magic=V7), b"f"),
    "a long name": (long_name(b"n" * 120) + header(b"n"), b"n" * 120),
    "PAX": (pax({b"path": b"d/\xff"}) + header(b"n"), b"d/\xff"),
    "PAX without a value": (pax({b"path": b""}) + header(b"n"), b"n"),
    "a long name before PAX": (long_name(b"n" * 120) + pax({b"path": b"p"}) + header(b"n"), b"n" * 120),
    "a global header": (pax({b"path": b"p"}, b"g") + header(b"n"), b"n"),
}


@pytest.mark.parametrize("form", NAMES)
def test_names(tmp_path: Path, form: str) -> None:
    data, name = NAMES[form]
    assert only(tmp_path, data + END).path == name


def test_what_a_header_says(tmp_path: Path) -> None:
    assert only(tmp_path, header(size=b"0000005 \0", mode=b" 4755 ") + padded(b"hello") + END)[2:5] == (0o4755, 1000, 5)
    assert only(tmp_path, header(size=base256(5), mtime=base256(-9)) + padded(b"hello") + END)[3:5] == (0, 5)
    records = {b"size": b"5", b"mtime": b"7.9", b"hdrcharset": b"BINARY"}
    assert only(tmp_path, pax(records) + header() + padded(b"hello") + END)[3:5] == (7, 5)
    link = only(tmp_path, long_name(b"t" * 150, b"K") + header(kind=b"2") + END)
    assert (link.type, link.target) == (tarfile.SYMTYPE, b"t" * 150)
    assert only(tmp_path, header(b"d/", kind=b"\0") + END).type == tarfile.DIRTYPE
    assert only(tmp_path, header(b"d", kind=b"5", size=512) + END)[1:5:3] == (tarfile.DIRTYPE, 0)


def test_a_sum_of_signed_bytes_is_taken(tmp_path: Path) -> None:
    """Old programs summed the bytes of a name so."""
    block = header(b"\xe4")
    signed = b"%06o\0 " % (sum(block[:148] + b" " * 8 + block[156:]) - 256)
    assert only(tmp_path, block[:148] + signed + block[156:] + END).path == b"\xe4"
    with pytest.raises(InvalidImage):
        read(tmp_path, block[:148] + b"000001\0 " + block[156:] + END)


@pytest.mark.parametrize("end", [b"", bytes(BLOCK - 5), padded(b"hello")[5:], padded(b"hello")[5:] + END[:BLOCK]])
def test_an_archive_may_end_after_its_last_content(tmp_path: Path, end: bytes) -> None:
    """Those of umoci 0.4.7 have no padding there."""
    assert only(tmp_path, header(size=5) + b"hello" + end[: BLOCK * 2]).size == 5


MALFORMED = {
    "cut content": header(size=6) + b"hello",
    "cut header": header()[:100],
    "one block of zeros": END[:BLOCK] + header(),
    "no octal digit": header(size=b"8") + END,
    "unknown type": header(kind=b"V") + END,
    "no target": header(kind=b"2") + END,
    "long component": pax({b"path": b"n" * 256}) + header() + END,
    "deep": pax({b"path": b"d/" * 201}) + header() + END,
    "a zero byte in a name": pax({b"path": b"a\0b"}) + header() + END,
    "a record of a wrong length": pax(b"8 size=1\n") + header() + END,
    "a record of no length": pax(b"0 a=b\n") + header() + END,
    "negative size": pax(record(b"size", b"-1")) + header() + END,
    "no time": pax(record(b"mtime", b"now")) + header() + END,
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_is_malformed_is_refused_whatever_pythons_release_makes_of_it(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidImage):
        read(tmp_path, MALFORMED[name])


def test_frames_of_zstd(tmp_path: Path) -> None:
    data = header(size=3 << 20) + bytes(3 << 20) + END
    blob = b"\x5f\x2a\x4d\x18\x03\0\0\0abc" + zstd(data[:1000]) + zstd(data[1000:]) + b"\x50\x2a\x4d\x18\0\0\0\0"
    (entry,) = read(tmp_path, data, blob)
    assert entry.size == 3 << 20
    with pytest.raises(InvalidImage, match="too early"):
        read(tmp_path, data, zstd(data)[:-5])
    with pytest.raises(InvalidImage, match="decompressed"):
        read(tmp_path, data, zstd(data)[:4] + b"\xff" * 40)


def test_a_node_without_the_library_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_reader, "ZSTD_LIBRARY", "libzstd.so.0")
    with pytest.raises(OSError, match=r"libzstd\.so\.0: this node has none"):
        read(tmp_path, END, zstd(END))
