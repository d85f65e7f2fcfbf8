"""The checks that a profile names for its files. docs/reference/profiles.md says what each of them proves.

They find what a job leaves that was killed, and what a crash leaves of a file system. Imported only where content is
judged.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
from collections.abc import Callable
from functools import partial
from typing import BinaryIO

from warmstart.profiles import elf
from warmstart.profiles.entry_files import EntryFiles, EntryInvalid

LARGEST_TEXT = 64 << 20
LARGEST_JSON = 1 << 20
LARGEST_PICKLE = 256 << 20  # it is held in memory
PAGE = 4096
_OF_A_RUN = re.compile(rb"/[0-9]{1,10}\.[0-9a-f]{8}/cache/")  # `Run.directory`
_PIECE = 1 << 20
_ZSTD = b"\x28\xb5\x2f\xfd"
_RLE, _RESERVED = 1, 3  # types of a zstd block
_LARGEST_BLOCK = 128 << 10


def _text(files: EntryFiles, name: str) -> None:
    """Require non-empty UTF-8 without NUL bytes. Truncation cannot be found."""
    data = files.read(name, LARGEST_TEXT)
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise EntryInvalid("text-malformed") from error
    if not data.strip() or b"\0" in data:
        raise EntryInvalid("text-malformed")


def read_json(files: EntryFiles, name: str) -> object:
    """Return the JSON value that a file is."""
    try:
        value: object = json.loads(files.read(name, LARGEST_JSON))
    except (ValueError, RecursionError) as error:
        raise EntryInvalid("json-malformed") from error
    return value


def _written(files: EntryFiles, name: str) -> None:
    """Require that the last page, or all of a smaller file, is not zeroes: those would never have been written."""
    with files.open(name) as (file, size):
        file.seek(max(0, size - PAGE), os.SEEK_SET)
        if not file.read(PAGE).strip(b"\0"):
            raise EntryInvalid("not-written")


def _empty_or_written(files: EntryFiles, name: str) -> None:
    if files.status(name).st_size:
        _written(files, name)


def _base32_name(files: EntryFiles, name: str) -> None:
    """Require Inductor's hash for a name: of the content, or of a source after a `c`, without the space around it.

    Lower-case base32 of the SHA-256, without its constant last letter (torch 2.13, `_inductor/codecache.py`).
    """
    stem, dot, _ = name.rpartition("/")[2].partition(".")
    data = files.read(name, LARGEST_PICKLE)
    digest = hashlib.sha256(data.strip() if dot else data).digest()
    if stem != "c" * bool(dot) + base64.b32encode(digest)[:51].decode().lower():
        raise EntryInvalid("hash-differs")


def _pickle(files: EntryFiles, name: str) -> None:
    walk_pickles(files.read(name, LARGEST_PICKLE), 1)


def walk_pickles(data: bytes, count: int) -> int:
    """Require that data are `count` pickles; return the number of their opcodes. Nothing is made of them."""
    import pickletools

    file, opcodes = io.BytesIO(data), 0
    try:
        for _ in range(count):
            opcodes += sum(1 for _ in pickletools.genops(file))
    except (ValueError, ArithmeticError, LookupError) as error:
        raise EntryInvalid("pickle-malformed") from error
    if file.tell() != len(data):
        raise EntryInvalid("pickle-malformed")
    return opcodes


def _compressed(files: EntryFiles, name: str) -> None:
    """Require one zlib stream (RFC 1950) or one zstd frame (RFC 8878) that ends where the file does.

    zlib is inflated, and its checksum covers all content. zstd is only walked block by block, because Python before
    3.14 cannot decompress it: that finds changed lengths, but no other change inside a block.
    """
    _written(files, name)
    with files.open(name) as (file, _):
        start = file.read(len(_ZSTD))
        if start == _ZSTD:
            _walk_frame(file)
        else:
            file.seek(0)
            _inflate(file)
        _require(not file.read(1))


def _inflate(file: BinaryIO) -> None:
    import zlib

    inflater = zlib.decompressobj()
    try:
        while not inflater.eof:
            data = inflater.unconsumed_tail or file.read(_PIECE)
            inflated = inflater.decompress(data, _PIECE)  # so a bomb takes time alone, which `judge` bounds
            _require(data or inflated or inflater.eof)
    except zlib.error as error:
        raise EntryInvalid("compressed-malformed") from error
    _require(not inflater.unused_data)


def _walk_frame(file: BinaryIO) -> None:
    (descriptor,) = _bytes(file, 1)
    single_segment, checksum = descriptor >> 5 & 1, descriptor >> 2 & 1
    _require(descriptor & 0b1000 == 0)
    _bytes(file, 0 if single_segment else 1)  # the window's size
    _bytes(file, (0, 1, 2, 4)[descriptor & 3])  # the dictionary's id
    _bytes(file, (0, 2, 4, 8)[descriptor >> 6] or single_segment)  # the content's size
    last = 0
    while not last:
        header = int.from_bytes(_bytes(file, 3), "little")
        last, kind, size = header & 1, header >> 1 & 3, header >> 3
        _require(kind != _RESERVED and size <= _LARGEST_BLOCK)
        _bytes(file, 1 if kind == _RLE else size)
    _bytes(file, 4 if checksum else 0)


def _bytes(file: BinaryIO, length: int) -> bytes:
    data = file.read(length)
    _require(len(data) == length)
    return data


def _require(condition: object) -> None:
    if not condition:
        raise EntryInvalid("compressed-malformed")


FORMATS: dict[str, Callable[[EntryFiles, str], object]] = {
    "any": lambda _files, _name: None,  # a regular file, as all in an entry are
    "base32-name": _base32_name,
    "compressed": _compressed,
    "empty-or-written": _empty_or_written,
    "json": read_json,
    "pickle": _pickle,
    "text": _text,
    "written": _written,
    **{kind: partial(elf.check, kind) for kind in elf.KINDS},
}
TEXTS = ("json", "text")


def require_no_run(files: EntryFiles, name: str) -> None:
    """Require a text that names no run's own cache, which a job wrote that did not see it at the constant path."""
    if _OF_A_RUN.search(files.read(name, LARGEST_TEXT)):
        raise EntryInvalid("made-elsewhere")
