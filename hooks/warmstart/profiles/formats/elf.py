"""Check ELF64 little-endian files by their headers, without loading them.

Why not dlopen: it runs the file, and half-truncated libraries load (cache-formats, sections 2 and 14).
Linkers write the section headers last and at the end, so a file that was cut short names bytes that it
does not have. Bytes inside code and data are not looked at. Layout: elf(5), gABI chapters 4 and 5.
"""

from __future__ import annotations

import struct
from typing import BinaryIO, NamedTuple

from warmstart.profiles.entry_files import EntryFiles, EntryInvalid

SHARED, RELOCATABLE = 3, 1  # e_type
_MACHINES = {62, 183}  # x86-64, AArch64
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_IDENT = b"\x7fELF\x02\x01\x01"
_NULL, _STRTAB, _NOBITS = 0, 3, 8  # sh_type
_LOAD, _DYNAMIC = 1, 2  # p_type
_DT_NULL, _DT_STRTAB, _DT_SYMTAB = 0, 5, 6


class _Part(NamedTuple):
    """A byte range of a file that holds one ELF image."""

    file: BinaryIO
    start: int
    size: int

    def read(self, offset: int, length: int) -> bytes:
        """Return bytes that must lie inside the part."""
        if offset + length > self.size:
            raise EntryInvalid("elf-truncated")
        self.file.seek(self.start + offset)
        data = self.file.read(length)
        if len(data) < length:
            raise EntryInvalid("elf-truncated")
        return data


def check(files: EntryFiles, name: str, kind: int) -> None:
    """Raise `EntryInvalid` unless the file is one ELF image of `kind` (`SHARED`, `RELOCATABLE`)."""
    with files.open(name) as (file, size):
        _check(_Part(file, 0, size), {kind})


def check_if_object(file: BinaryIO, start: int, size: int) -> None:
    """Check `size` bytes at `start` if they begin as an ELF image does; other bytes are not our concern."""
    part = _Part(file, start, size)
    if size >= 4 and part.read(0, 4) == _IDENT[:4]:
        _check(part, {RELOCATABLE, SHARED})


def _check(part: _Part, kinds: set[int]) -> None:
    (ident, kind, machine, version, _, segments, sections, _, own, segment_size, segment_count, *rest) = _HEADER.unpack(
        part.read(0, _HEADER.size)
    )
    section_size, section_count, names = rest
    _require(ident[:7] == _IDENT and ident[9:] == bytes(7) and kind in kinds)
    _require(machine in _MACHINES and version == 1 and own == _HEADER.size)
    _require(section_size == _SECTION.size and 0 < names < section_count)
    _require(segment_count == 0 or segment_size == _SEGMENT.size)
    _require((kind == SHARED) == (segment_count > 0))
    _check_sections(part, part.read(sections, section_count * section_size), names)
    _check_segments(part, part.read(segments, segment_count * segment_size))


def _check_sections(part: _Part, table: bytes, names: int) -> None:
    sections = list(_SECTION.iter_unpack(table))
    _require(sections[0] == (0,) * 10 and sections[names][1] == _STRTAB)
    longest_name = sections[names][5]
    for name, kind, _, _, offset, size, link, _, align, each in sections[1:]:
        _require(kind != _NULL and name < longest_name and link < len(sections))
        _require(align & (align - 1) == 0 and (each == 0 or size % each == 0))
        if kind != _NOBITS and offset + size > part.size:
            raise EntryInvalid("elf-truncated")
        if kind == _STRTAB:
            _require(size > 0 and part.read(offset, 1) == part.read(offset + size - 1, 1) == b"\0")


def _check_segments(part: _Part, table: bytes) -> None:
    kinds = set()
    for kind, _, offset, _, _, in_file, in_memory, align in _SEGMENT.iter_unpack(table):
        kinds.add(kind)
        _require(align & (align - 1) == 0)
        if offset + in_file > part.size:
            raise EntryInvalid("elf-truncated")
        if kind == _LOAD:
            _require(in_file <= in_memory)
        if kind == _DYNAMIC:
            _check_dynamic(part.read(offset, min(in_file, 1 << 16)))
    _require(not table or {_LOAD, _DYNAMIC} <= kinds)


def _check_dynamic(data: bytes) -> None:
    _require(len(data) % 16 == 0)
    tags = [tag for tag, _ in struct.iter_unpack("<qQ", data)]
    _require(_DT_NULL in tags)
    _require({_DT_STRTAB, _DT_SYMTAB} <= set(tags[: tags.index(_DT_NULL)]))


def _require(condition: bool) -> None:
    if not condition:
        raise EntryInvalid("elf-malformed")
