"""Which release of Slurm a plugin was built for, read from its file."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from warmstart.doctor import installed

SECTIONS = 64  # where the section headers begin


def plugin(release: tuple[int, int], name: bytes = b"plugin_version") -> bytes:
    """Return an ELF file with three sections (symbols, names, data) and one symbol."""
    names, value = b"\0" + name + b"\0", (release[0] << 16 | release[1] << 8 | 5).to_bytes(4, "little")
    symbol = installed._SYMBOL.pack(1, 0, 0, 2, 0x1000, 4)
    at = SECTIONS + 3 * installed._SECTION.size
    places = [at, at + len(symbol), at + len(symbol) + len(names)]
    sections = [
        installed._SECTION.pack(0, 11, 0, 0, places[0], len(symbol), 1, 0, 8, 24),
        installed._SECTION.pack(0, 3, 0, 0, places[1], len(names), 0, 0, 1, 0),
        installed._SECTION.pack(0, 1, 0, 0x1000, places[2], 4, 0, 0, 4, 0),
    ]
    header = installed._HEADER.pack(b"\x7fELF\2\1\1", 3, 62, 1, 0, 0, SECTIONS, 0, 64, 0, 0, 64, 3, 1)
    return b"".join([header, *sections, symbol, names, value])


def test_the_release_of_a_plugin(tmp_path: Path) -> None:
    """With the last number, which does not count for SPANK plugins."""
    (tmp_path / "warmstart.so").write_bytes(plugin((24, 11)))
    assert installed.built_for(str(tmp_path / "warmstart.so")) == (24, 11, 5)


def test_what_is_no_plugin(tmp_path: Path) -> None:
    """An empty file, a cut one, a program without the symbol: no release, and no exception."""
    whole = Path(os.path.realpath(sys.executable)).read_bytes()
    other = plugin((24, 11), b"plugin_type")
    for content in (b"", b"\x7fELF", whole[: len(whole) // 2], whole, other, plugin((24, 11))[:-4]):
        (tmp_path / "x.so").write_bytes(content)
        assert installed.built_for(str(tmp_path / "x.so")) is None


def test_where_a_plugin_is(tmp_path: Path) -> None:
    """By its path, or by its name in the first of Slurm's directories that has it."""
    place = str(tmp_path)
    (tmp_path / "another.so").touch()
    assert installed.find_plugin("another.so", ["/nowhere", place]) == f"{place}/another.so"
    assert installed.find_plugin(f"{place}/another.so", []) == f"{place}/another.so"
    assert installed.find_plugin("missing.so", [place]) == installed.find_plugin(f"{place}/missing.so", []) == ""
