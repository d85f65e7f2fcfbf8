"""Slurm's plugins as files: where they are, and which release they were built for.

Slurm loads a plugin only if its symbol `plugin_version` is its own SLURM_VERSION_NUMBER, of SPANK plugins without the
last number (src/common/plugin.c). The files are read and not loaded: what they need is in slurmstepd. `scontrol -V`
would tell the installed release, too, but reads slurm.conf first, and fails where that is wrong (seen on 22.05, 26.05).
"""

from __future__ import annotations

import glob
import os
import struct

from warmstart.host.files import read_small

# Directories of Slurm's packages; an installation elsewhere sets PluginDir.
PLACES = ("/usr/lib64/slurm", "/usr/lib/slurm", "/usr/lib/*/slurm-wlm", "/usr/lib/*/slurm", "/usr/local/lib/slurm")
LARGEST = 64 << 20  # bytes
_SLURMS_OWN = "select_*.so"  # in every installation
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # elf(5), 64 bits, little-endian
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_DYNAMIC_SYMBOLS = 11  # sh_type


def find(pattern: str, plugin_dir: str) -> list[str]:
    """Return the files with an absolute path, or with a name in the directories of PluginDir ("" for the defaults)."""
    if pattern.startswith("/"):
        return [pattern] if os.path.isfile(pattern) else []
    places = plugin_dir.split(":") if plugin_dir else PLACES
    return [path for place in places for path in sorted(glob.glob(f"{place}/{pattern}")) if os.path.isfile(path)]


def installed_release(plugin_dir: str) -> tuple[int, ...] | None:
    """Return the release of the installed Slurm, (24, 11, 5) for example; None if its plugins are not found."""
    found = (built_for(path) for path in find(_SLURMS_OWN, plugin_dir))
    return next((release for release in found if release), None)


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
