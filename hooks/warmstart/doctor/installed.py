"""The Slurm that doctor judges, of which a node may have several: the policy's `paths.scontrol` tells which.

Its slurmd is the best witness of the release: it loads the plugins and runs the hooks, and `slurmd -V` reads no file
and asks nobody. slurmctld, which does for a node without it, may be of another release.

Slurm loads a plugin only if its symbol `plugin_version` is its own SLURM_VERSION_NUMBER, of SPANK plugins without the
last number (src/common/plugin.c). The files are read and not loaded: what they need is in slurmstepd.
"""

from __future__ import annotations

import glob
import os
import re
import struct
from collections.abc import Iterable
from contextlib import suppress

from warmstart.errors import WarmstartError
from warmstart.host.deadline import after
from warmstart.host.files import read_small
from warmstart.slurm import commands
from warmstart.slurm.facts import Access
from warmstart.slurm.slurmctld import QUERY_S

PLUGINS = ("lib64/slurm", "lib/slurm", "lib/*/slurm-wlm", "lib/*/slurm")  # of Slurm's build, EL and Debian
LARGEST = 64 << 20  # bytes
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")  # elf(5), 64 bits, little-endian
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_DYNAMIC_SYMBOLS = 11  # sh_type


def prefix(scontrol: str) -> str:
    """Return the directory that Slurm is installed under: /opt/slurm/25.11 of a link /opt/slurm/current."""
    return os.path.dirname(os.path.dirname(os.path.realpath(scontrol)))


def release(scontrol: str, otherwise: str = "") -> tuple[int, ...]:
    """Return the release of slurmd, (24, 11, 5) for example; without one `otherwise`, slurmctld's; () if there is none.

    Slurm counts a candidate as its release: `26.11.0-0rc1`.
    """
    told = ""
    with suppress(WarmstartError, OSError):  # also a missing program
        told = commands.release(Access(f"{prefix(scontrol)}/sbin/slurmd"), after(QUERY_S))
    return tuple(int(number) for number in re.findall(r"\d+", told or otherwise)[:3])


def plugin_places(scontrol: str, plugin_dir: str) -> list[str]:
    """Return the directories of Slurm's plugins: slurmctld's PluginDir, and those under the prefix of Slurm here."""
    here = [place for pattern in PLUGINS for place in glob.glob(f"{glob.escape(prefix(scontrol))}/{pattern}")]
    return [*plugin_dir.split(":"), *here]


def find_plugin(name: str, places: Iterable[str]) -> str:
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


def names(path: str, text: str) -> bool:
    """Return whether a plugin was built with exactly this text."""
    pattern = rb"(?<![!-~])" + re.escape(text.encode()) + rb"\0"
    return re.search(pattern, read_small(os.path.realpath(path), LARGEST)) is not None
