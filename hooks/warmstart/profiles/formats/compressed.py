"""Check zlib streams and zstd frames to their last byte.

zlib (RFC 1950) is inflated in bounded memory; its Adler-32 covers all content. zstd (RFC 8878) is only walked block by
block, because Python before 3.14 cannot decompress it. That finds changed lengths and zeroes at the end of a block, but
no other change inside a block.
"""

from __future__ import annotations

import zlib
from typing import BinaryIO

from warmstart.profiles.entry_files import EntryFiles, EntryInvalid

MOST_INFLATED = 4 << 30  # bytes; bounds the time for a decompression bomb
_PIECE = 1 << 20
_ZSTD = b"\x28\xb5\x2f\xfd"
_RLE, _COMPRESSED, _RESERVED = 1, 2, 3  # block types
_LARGEST_BLOCK = 128 << 10
_DICTIONARY_BYTES = (0, 1, 2, 4)
_CONTENT_BYTES = (0, 2, 4, 8)


def check(files: EntryFiles, name: str, *, least: int) -> None:
    """Raise `EntryInvalid` unless the file is one zlib stream or one zstd frame with at least `least` bytes of content.

    The size of a zstd frame's content is checked only if the frame states it.
    """
    with files.open(name) as (file, _):
        start = file.read(4)
        file.seek(0)
        size = _walk_frame(file) if start == _ZSTD else _inflate(file)
        _require(size is None or size >= least)
        _require(not file.read(1))


def _inflate(file: BinaryIO) -> int:
    """Inflate the stream and return the size of its content in bytes."""
    inflater = zlib.decompressobj()
    size = 0
    try:
        while not inflater.eof:
            data = inflater.unconsumed_tail or file.read(_PIECE)
            inflated = inflater.decompress(data, _PIECE)
            _require(bool(data or inflated) or inflater.eof)
            size += len(inflated)
            if size > MOST_INFLATED:
                raise EntryInvalid("too-large")
    except zlib.error as error:
        raise EntryInvalid("compressed-malformed") from error
    _require(not inflater.unused_data)
    return size


def _walk_frame(file: BinaryIO) -> int | None:
    """Walk one frame. Return the size of its content, or None if the frame does not state it."""
    file.seek(4)
    (descriptor,) = _bytes(file, 1)
    single_segment, checksum = descriptor >> 5 & 1, descriptor >> 2 & 1
    _require(descriptor & 0b1000 == 0)
    if not single_segment:
        _bytes(file, 1)  # the window's size
    _bytes(file, _DICTIONARY_BYTES[descriptor & 3])
    width = _CONTENT_BYTES[descriptor >> 6] or single_segment
    content = int.from_bytes(_bytes(file, width), "little") + (256 if width == 2 else 0)
    _walk_blocks(file)
    _bytes(file, 4 if checksum else 0)
    return content if width else None


def _walk_blocks(file: BinaryIO) -> None:
    last = 0
    while not last:
        header = int.from_bytes(_bytes(file, 3), "little")
        last, kind, size = header & 1, header >> 1 & 3, header >> 3
        _require(kind != _RESERVED and size <= _LARGEST_BLOCK)
        data = _bytes(file, 1 if kind == _RLE else size)
        if kind == _COMPRESSED:
            _check_block(data)


def _check_block(data: bytes) -> None:
    """Require that a compressed block has all its literals, and a non-zero last byte if it has sequences.

    The last byte contains the end marker of the sequences, a 1 bit (RFC 8878, 3.1.1.3.2 and 4.1).
    """
    sequences = _literals_end(data) if data else 0
    _require(sequences < len(data))
    _require(sequences == len(data) - 1 if data[sequences] == 0 else data[-1] != 0)


def _literals_end(data: bytes) -> int:
    """Return the length of the literals section, from its header (RFC 8878, 3.1.1.3.1.1)."""
    kind, form = data[0] & 3, data[0] >> 2 & 3
    if kind < _COMPRESSED:  # raw, or one repeated byte: one length of 5, 12 or 20 bits
        header, shift = ((1, 3), (2, 4), (1, 3), (3, 4))[form]
        length = int.from_bytes(data[:header], "little") >> shift
        return header + (1 if kind == _RLE else length)
    header, bits = ((3, 10), (3, 10), (4, 14), (5, 18))[form]  # regenerated and compressed size
    return header + (int.from_bytes(data[:header], "little") >> (4 + bits))


def _bytes(file: BinaryIO, length: int) -> bytes:
    data = file.read(length)
    _require(len(data) == length)
    return data


def _require(condition: bool) -> None:
    if not condition:
        raise EntryInvalid("compressed-malformed")
