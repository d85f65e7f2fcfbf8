"""Check cubins: NVIDIA's ELF files of machine code for one GPU architecture.

Facts (cache-formats, section 1f; seen on files of ptxas 12.4 to 13.2 and nvcc 13.0, sm_80 to sm_120): the program
headers are the last thing in the file, so a cubin that was cut anywhere has lost some of them; the kernel
`f` is the section `.text.f`; the architecture stands in `e_flags`, where depends on the ABI.
"""

from __future__ import annotations

from warmstart.profiles.entry_files import EntryFiles, EntryInvalid
from warmstart.profiles.formats import elf

_CUDA = {190}  # EM_CUDA
_CODE = b".text."
_LARGEST_NAMES = 16 << 20
# (EI_OSABI, EI_ABIVERSION) → the bit at which the architecture begins in e_flags
_ARCH_AT = {(0x33, 7): 0, (0x41, 8): 8}


def check_cubin(files: EntryFiles, name: str, *, arch: int | None = None, kernel: str = "") -> None:
    """Raise `EntryInvalid` unless the file is one whole cubin with code.

    `arch` (90 for sm_90) and `kernel` are what it must be for and hold, where the entry says so. Code itself
    is not looked at.
    """
    with files.open(name) as (file, size):
        part = elf.Part(file, 0, size)
        found = elf.headers(part, {elf.EXECUTABLE}, _CUDA)
        elf.require(bool(found.segments) and found.end == size)
        elf.check_segments(part, found.segments)
        elf.require(found.abi in _ARCH_AT)
        kernels = _kernels(part, found)
    if arch is not None and found.flags >> _ARCH_AT[found.abi] & 0xFF != arch:
        raise EntryInvalid("other-target")
    if not kernels or (kernel and kernel.encode() not in kernels):
        raise EntryInvalid("other-target")


def _kernels(part: elf.Part, found: elf.Headers) -> set[bytes]:
    """Return the names of the functions that the cubin has code for."""
    table = found.sections[found.names]
    elf.require(table.size <= _LARGEST_NAMES)
    names = part.read(table.offset, table.size)
    found_names = (names[section.name : names.index(b"\0", section.name)] for section in found.sections)
    return {name[len(_CODE) :] for name in found_names if name.startswith(_CODE)}
