"""Slurm's plugins as files: which release of Slurm they were built for.

Slurm loads a plugin only if its symbol `plugin_version` is its own SLURM_VERSION_NUMBER, of SPANK plugins without the
last number (src/common/plugin.c). The files are read and not loaded: what they need is in slurmstepd.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable

from warmstart.host.files import read_small

LARGEST = 64 << 20  # bytes
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # elf(5), 64 bits, little-endian
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_DYNAMIC_SYMBOLS = 11  # sh_type


def find(name: str, places: Iterable[str]) -> str:
    """Return the path of a plugin with an absolute path, or with a name in one of the directories; "" without one."""
    paths = [name] if os.path.isabs(name) else [f"{place}/{name}" for place in places]
    return next(filter(os.path.isfile, paths), "")


def built_for(path: str) -> tuple[int, ...] | None:
    """Return the release of Slurm that a plugin was built for, (24, 11, 5); None if it is no plugin."""
    data = read_small(os.path.realpath(path), LARGEST)
    try:
        header = _HEADER.unpack_from(data)
        start, size, count = header[6], header[11], header[12]
        sections = [_SECTION.unpack_from(data, start + number * size) for number in range(count)]
        for _, kind, _, _, offset, length, link, *_ in sections:
            names = sections[link][4]
            for at in range(offset, offset + length, _SYMBOL.size) if kind == _DYNAMIC_SYMBOLS else ():
                name, _, _, index, value, _ = _SYMBOL.unpack_from(data, at)
                if data.startswith(b"plugin_version\0", names + name):
                    (number,) = struct.unpack_from("<I", data, sections[index][4] + value - sections[index][3])
                    return number >> 16, number >> 8 & 0xFF, number & 0xFF
    except (struct.error, IndexError, OverflowError):  # no ELF file, or one with impossible offsets
        pass
    return None
