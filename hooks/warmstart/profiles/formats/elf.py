"""Check ELF64 little-endian files, cubins included, by their headers, without loading them.

dlopen would run the file, and half-truncated libraries load. Linkers write the section headers last, at the end of
the file, so a file that was cut short names bytes that it does not have. Code and data are not inspected. Layout:
elf(5), gABI chapters 4 and 5.

A cubin is NVIDIA's ELF file of machine code for one GPU architecture. Its program headers are the last thing in the
file, so a cubin that was cut anywhere lacks some of them. The kernel `f` is the section `.text.f`. The architecture
is in `e_flags`; its position depends on the ABI. Seen on files of ptxas 12.4 to 13.2 and nvcc 13.0, sm_80 to sm_120.

AMD's is a shared object whose section headers are the last thing in the file. The kernel `f` is the function `f` with
its descriptor `f.kd`. The architecture is the lowest byte of `e_flags` (LLVM's AMDGPUUsage, `EF_AMDGPU_MACH`). Seen on
files of Triton 3.7 and 3.9, gfx906 to gfx1250.
"""

from __future__ import annotations

import struct
from typing import BinaryIO, NamedTuple

from warmstart.profiles.entry_files import EntryFiles, EntryInvalid

SHARED, RELOCATABLE, EXECUTABLE = 3, 1, 2  # e_type
_MACHINES = {62, 183}  # x86-64, AArch64
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_MACHINE_AT = 18  # e_machine
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_IDENT = b"\x7fELF\x02\x01\x01"
_SYMBOL = struct.Struct("<IBBHQQ")
_NULL, _SYMTAB, _STRTAB, _NOBITS = 0, 2, 3, 8  # sh_type
_UNDEFINED = 0  # st_shndx
_LOAD, _DYNAMIC = 1, 2  # p_type
_DT_NULL, _DT_STRTAB, _DT_SYMTAB = 0, 5, 6
_CUDA = {190}  # EM_CUDA
_CODE = b".text."
_LARGEST_NAMES = 16 << 20
_LARGEST_SYMBOLS = 8 << 20  # bytes of a symbol table; the largest that was seen has 60 KiB
_AMDGPU = {224}  # EM_AMDGPU
_HSA = 64  # EI_OSABI of AMD's
# Lowest byte of e_flags → architecture: those for which Triton 3.9 compiles. Kernels for others are not taken.
_GFX = {
    0x2F: "gfx906", 0x30: "gfx908", 0x3F: "gfx90a", 0x4C: "gfx942", 0x4F: "gfx950",
    0x41: "gfx1100", 0x46: "gfx1101", 0x47: "gfx1102", 0x44: "gfx1103", 0x43: "gfx1150", 0x4A: "gfx1151",
    0x55: "gfx1152", 0x58: "gfx1153", 0x48: "gfx1200", 0x4E: "gfx1201", 0x49: "gfx1250",
}  # fmt: skip
# (EI_OSABI, EI_ABIVERSION) → the bit at which the architecture begins in e_flags
_ARCH_AT = {(0x33, 7): 0, (0x41, 8): 8}


class Part(NamedTuple):
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
        _check(Part(file, 0, size), {kind})


def check_if_object(file: BinaryIO, start: int, size: int) -> bool:
    """Check `size` bytes at `start` if they begin as an ELF image does; return whether they are code for the CPU.

    A cubin is none: it is checked, and has nothing that a linker of the host would look for.
    """
    part = Part(file, start, size)
    if size < 4 or part.read(0, 4) != _IDENT[:4]:
        return False
    if int.from_bytes(part.read(_MACHINE_AT, 2), "little") in _CUDA:
        _check_cubin(part)
        return False
    _check(part, {RELOCATABLE, SHARED})
    return True


class Section(NamedTuple):
    """One section header."""

    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    each: int


class Headers(NamedTuple):
    """What the ELF header says, and both tables."""

    kind: int  # e_type
    abi: tuple[int, int]  # EI_OSABI, EI_ABIVERSION
    version: int
    flags: int
    sections: list[Section]
    names: int  # index of the section with the sections' names
    segments: bytes
    end: int  # where the table that is last in the file ends


def headers(part: Part, kinds: set[int], machines: set[int]) -> Headers:
    """Return the headers of an ELF image whose tables and sections lie inside the part."""
    (ident, kind, machine, version, _, segments, sections, flags, own, segment_size, segment_count, *rest) = (
        _HEADER.unpack(part.read(0, _HEADER.size))
    )
    section_size, section_count, names = rest
    require(ident[:7] == _IDENT and ident[9:] == bytes(7) and kind in kinds)
    require(machine in machines and own == _HEADER.size)
    require(section_size == _SECTION.size and 0 < names < section_count)
    require(segment_count == 0 or segment_size == _SEGMENT.size)
    table = part.read(sections, section_count * section_size)
    elf = Headers(
        kind=kind,
        abi=(ident[7], ident[8]),
        version=version,
        flags=flags,
        sections=[Section(*fields) for fields in _SECTION.iter_unpack(table)],
        names=names,
        segments=part.read(segments, segment_count * segment_size),
        end=max(sections + section_count * section_size, segments + segment_count * segment_size),
    )
    _check_sections(part, elf)
    return elf


def _check(part: Part, kinds: set[int]) -> None:
    elf = headers(part, kinds, _MACHINES)
    require(elf.version == 1)
    # A library has segments, among them the one that the loader starts from; an object has none.
    require((elf.kind == SHARED) == bool(elf.segments))
    require(check_segments(part, elf.segments) == bool(elf.segments))


def check_function(files: EntryFiles, name: str, function: str, kind: int = RELOCATABLE) -> None:
    """Raise `EntryInvalid` unless the file is one whole object, or library, that defines `function`."""
    check(files, name, kind)
    with files.open(name) as (file, size):
        defined = symbols(Part(file, 0, size)).defined
    if function.encode() not in defined:
        raise EntryInvalid("other-function")


class Symbols(NamedTuple):
    """The names in an object's symbol table."""

    defined: set[bytes]
    undefined: set[bytes]  # another object has to define them


def symbols(part: Part) -> Symbols:
    """Return the symbols of an object that was checked before; `too-large` for a table that is out of proportion."""
    return _symbols(part, headers(part, {RELOCATABLE, SHARED}, _MACHINES))


def _symbols(part: Part, elf: Headers) -> Symbols:
    defined: set[bytes] = set()
    undefined: set[bytes] = set()
    room = _LARGEST_NAMES  # of all names together: they may overlap
    tables = [section for section in elf.sections if section.kind == _SYMTAB]
    require(len(tables) <= 1)  # gABI, chapter 4
    for section in tables:
        strings = elf.sections[section.link]
        require(section.each == _SYMBOL.size and strings.kind == _STRTAB)
        if section.size > _LARGEST_SYMBOLS or strings.size > _LARGEST_NAMES:
            raise EntryInvalid("too-large")
        names = part.read(strings.offset, strings.size)
        for at, _, _, where, _, _ in _SYMBOL.iter_unpack(part.read(section.offset, section.size)):
            require(at < len(names))
            name = names[at : names.index(b"\0", at)]
            room -= len(name)
            if room < 0:
                raise EntryInvalid("too-large")
            (undefined if where == _UNDEFINED else defined).add(name)
    return Symbols(defined - {b""}, undefined - {b""})


def _check_sections(part: Part, elf: Headers) -> None:
    require(tuple(elf.sections[0]) == (0,) * 10 and elf.sections[elf.names].kind == _STRTAB)
    longest_name = elf.sections[elf.names].size
    for section in elf.sections[1:]:
        require(section.kind != _NULL and section.name < longest_name and section.link < len(elf.sections))
        require(section.align & (section.align - 1) == 0)
        require(section.each == 0 or section.size % section.each == 0)
        if section.kind != _NOBITS and section.offset + section.size > part.size:
            raise EntryInvalid("elf-truncated")
        if section.kind == _STRTAB:
            first, last = section.offset, section.offset + section.size - 1
            require(section.size > 0 and part.read(first, 1) == part.read(last, 1) == b"\0")


def check_segments(part: Part, table: bytes) -> bool:
    """Require segments inside the part, one of them loaded, at most one dynamic; return whether there is one."""
    kinds = set()
    for kind, _, offset, _, _, in_file, in_memory, align in _SEGMENT.iter_unpack(table):
        require(kind != _DYNAMIC or _DYNAMIC not in kinds)
        kinds.add(kind)
        require(align & (align - 1) == 0)
        if offset + in_file > part.size:
            raise EntryInvalid("elf-truncated")
        if kind == _LOAD:
            require(in_file <= in_memory)
        if kind == _DYNAMIC:
            _check_dynamic(part.read(offset, min(in_file, 1 << 16)))
    require(not table or _LOAD in kinds)
    return _DYNAMIC in kinds


def _check_dynamic(data: bytes) -> None:
    require(len(data) % 16 == 0)
    tags = [tag for tag, _ in struct.iter_unpack("<qQ", data)]
    require(_DT_NULL in tags)
    require({_DT_STRTAB, _DT_SYMTAB} <= set(tags[: tags.index(_DT_NULL)]))


def require(condition: bool) -> None:
    """Raise `elf-malformed` unless it holds."""
    if not condition:
        raise EntryInvalid("elf-malformed")


def check_cubin(files: EntryFiles, name: str, *, arch: int | None = None, kernel: str = "") -> None:
    """Raise `EntryInvalid` unless the file is one whole cubin with code.

    `arch` (90 for sm_90) and `kernel` are what it must be for and hold, where the entry says so. Code itself
    is not looked at.
    """
    with files.open(name) as (file, size):
        found, kernels = _check_cubin(Part(file, 0, size))
    if (arch is not None and found != arch) or (kernel and kernel.encode() not in kernels):
        raise EntryInvalid("other-target")


def _check_cubin(part: Part) -> tuple[int, set[bytes]]:
    """Require a part that is one whole cubin with code; return its architecture and the names of its functions."""
    elf = headers(part, {EXECUTABLE}, _CUDA)
    require(bool(elf.segments) and elf.end == part.size)
    check_segments(part, elf.segments)
    require(elf.abi in _ARCH_AT)
    if not (kernels := _kernels(part, elf)):
        raise EntryInvalid("other-target")
    return elf.flags >> _ARCH_AT[elf.abi] & 0xFF, kernels


def _kernels(part: Part, elf: Headers) -> set[bytes]:
    """Return the names of the functions that the cubin has code for."""
    table = elf.sections[elf.names]
    require(table.size <= _LARGEST_NAMES)
    names = part.read(table.offset, table.size)
    section_names = (names[section.name : names.index(b"\0", section.name)] for section in elf.sections)
    return {name[len(_CODE) :] for name in section_names if name.startswith(_CODE)}


def check_hsaco(files: EntryFiles, name: str, arch: str, kernel: str) -> None:
    """Raise `EntryInvalid` unless the file is one whole code object for AMD's `arch` (`gfx942`) with this kernel."""
    with files.open(name) as (file, size):
        part = Part(file, 0, size)
        elf = headers(part, {SHARED}, _AMDGPU)
        require(elf.abi[0] == _HSA and elf.end == size and check_segments(part, elf.segments))
        defined = _symbols(part, elf).defined
    if _GFX.get(elf.flags & 0xFF) != arch.partition(":")[0]:
        raise EntryInvalid("other-target")
    if not {kernel.encode(), f"{kernel}.kd".encode()} <= defined:
        raise EntryInvalid("other-function")
