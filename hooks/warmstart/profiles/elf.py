"""Check ELF64 little-endian files, machine code for GPUs included, by their headers, without loading them.

dlopen would run the file, and half-truncated libraries load. Linkers write the section headers last, at the end of the
file, so a file that was cut short names bytes that it does not have. Code and data are not looked at. Layout: elf(5),
gABI chapters 4 and 5.

A cubin is NVIDIA's ELF file for one GPU architecture: its program headers are the last thing in the file (seen on files
of ptxas 12.4 to 13.2). AMD's code object is a shared object that ends with its section headers (Triton 3.7 and 3.9).
"""

from __future__ import annotations

import struct
from typing import BinaryIO

from warmstart.profiles.entry_files import EntryFiles, EntryInvalid

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_IDENT = b"\x7fELF\x02\x01\x01"
_NULL, _STRTAB, _NOBITS = 0, 3, 8  # sh_type
_LOAD, _DYNAMIC = 1, 2  # p_type


_OBJECT, _PROGRAM, _LIBRARY = 1, 2, 3  # e_type
_HOST, _GPU = (62, 183), (190, 224)  # e_machine: x86-64, AArch64; CUDA, AMD's
KINDS = {
    "object": (_OBJECT, _HOST),
    "library": (_LIBRARY, _HOST),
    "cubin": (_PROGRAM, _GPU[:1]),
    "hsaco": (_LIBRARY, _GPU[1:]),
}


def check(kind: str, files: EntryFiles, name: str) -> None:
    """Raise `EntryInvalid` unless the file is one whole ELF file of a kind, a key of `KINDS`."""
    with files.open(name) as (file, size):
        _check(file, size, *KINDS[kind])


def _check(file: BinaryIO, size: int, kind: int, machines: tuple[int, ...]) -> None:
    (ident, elf_type, machine, _, _, segments, sections, _, own, segment_size, segment_count, *rest) = _HEADER.unpack(
        _read(file, size, 0, _HEADER.size)
    )
    section_size, section_count, names = rest
    _require(ident[:7] == _IDENT and elf_type == kind and machine in machines and own == _HEADER.size)
    _require(section_size == _SECTION.size and 0 < names < section_count)
    _require(bool(segment_count) == (kind != _OBJECT) and (not segment_count or segment_size == _SEGMENT.size))
    table = _read(file, size, sections, section_count * section_size)
    _check_sections(size, list(_SECTION.iter_unpack(table)), names)
    dynamic = _check_segments(size, _read(file, size, segments, segment_count * segment_size))
    _require(dynamic == (kind == _LIBRARY))  # what the loader starts from
    end = max(sections + section_count * section_size, segments + segment_count * segment_size)
    _require(end == size or machine not in _GPU)


def _check_sections(size: int, sections: list[tuple[int, ...]], names: int) -> None:
    _require(not any(sections[0]) and sections[names][1] == _STRTAB)
    for name, kind, _, _, offset, length, link, _, align, each in sections[1:]:
        _require(kind != _NULL and name < sections[names][5] and link < len(sections))
        _require(align & (align - 1) == 0 and (each == 0 or length % each == 0))
        _require(kind == _NOBITS or offset + length <= size)


def _check_segments(size: int, table: bytes) -> bool:
    """Require segments inside the file, one of them loaded, at most one dynamic; return whether there is one."""
    kinds = []
    for kind, _, offset, _, _, in_file, in_memory, align in _SEGMENT.iter_unpack(table):
        _require(align & (align - 1) == 0 and offset + in_file <= size)
        _require(kind != _LOAD or in_file <= in_memory)
        kinds.append(kind)
    _require(not kinds or _LOAD in kinds)
    _require(kinds.count(_DYNAMIC) <= 1)
    return _DYNAMIC in kinds


def _read(file: BinaryIO, size: int, offset: int, length: int) -> bytes:
    _require(offset + length <= size)
    file.seek(offset)
    data = file.read(length)
    _require(len(data) == length)
    return data


def _require(condition: object) -> None:
    if not condition:
        raise EntryInvalid("elf-malformed")
