"""Headers of tar archives, byte by byte: also those that no program writes."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

BLOCK = 512
USTAR, GNU, V7 = b"ustar\x0000", b"ustar  \0", bytes(8)
END = bytes(2 * BLOCK)


def header(  # noqa: PLR0917 - a header has that many fields
    name: bytes = b"f",
    kind: bytes = b"0",
    size: int | bytes = 0,
    target: bytes = b"",
    magic: bytes = USTAR,
    prefix: bytes = b"",
    mode: int | bytes = 0o644,
    mtime: int | bytes = 1000,
) -> bytes:
    """Return a header with the right sum. A field given in bytes is taken as it is."""
    fields = (
        name[:100].ljust(100, b"\0"), _number(mode, 8), _number(0, 8), _number(0, 8), _number(size, 12),
        _number(mtime, 12), b" " * 8, kind, target[:100].ljust(100, b"\0"), magic, bytes(80), prefix[:155],
    )  # fmt: skip
    return summed(b"".join(fields).ljust(BLOCK, b"\0"))


def summed(block: bytes) -> bytes:
    """Return a header with the sum that it should have."""
    blank = block[:148] + b" " * 8 + block[156:]
    return blank[:148] + b"%06o\0 " % sum(blank) + blank[156:]


def _number(value: int | bytes, width: int) -> bytes:
    if isinstance(value, bytes):
        return value.ljust(width, b"\0")[:width]
    octal = b"%0*o\0" % (width - 1, value)
    return octal if len(octal) == width else base256(value, width)


def base256(value: int, width: int = 12) -> bytes:
    """Return a number as GNU tar writes those that are too large, or negative."""
    return ((value + (1 << 8 * width)) % (1 << 8 * width) | 0x80 << 8 * (width - 1)).to_bytes(width, "big")


def padded(content: bytes) -> bytes:
    """Return content up to the end of its block."""
    return content + bytes(-len(content) % BLOCK)


def pax(records: Mapping[bytes, bytes] | bytes, kind: bytes = b"x") -> bytes:
    """Return a PAX header of these records."""
    data = records if isinstance(records, bytes) else b"".join(record(*each) for each in records.items())
    return header(b"PaxHeaders/f", kind, len(data)) + padded(data)


def record(key: bytes, value: bytes) -> bytes:
    """Return a record of a PAX header, which begins with its own length."""
    rest = b" " + key + b"=" + value + b"\n"
    length = len(rest)
    while length != len(rest) + len(str(length)):
        length = len(rest) + len(str(length))
    return b"%d" % length + rest


def long_name(name: bytes, kind: bytes = b"L") -> bytes:
    """Return GNU tar's header for the long name, or target (K), of the entry that follows."""
    return header(b"././@LongLink", kind, len(name) + 1, magic=GNU) + padded(name + b"\0")


def zstd(data: bytes) -> bytes:
    library = ctypes.CDLL("libzstd.so.1")
    library.ZSTD_compressBound.restype = library.ZSTD_compress.restype = ctypes.c_size_t
    room = library.ZSTD_compressBound(ctypes.c_size_t(len(data)))
    out = ctypes.create_string_buffer(room)
    size = library.ZSTD_compress(out, ctypes.c_size_t(room), data, ctypes.c_size_t(len(data)), 3)
    return ctypes.string_at(out, size)
