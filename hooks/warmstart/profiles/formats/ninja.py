"""Check a directory in which ninja built a library (docs/cache-formats.md, Ninja builders).

Seen with ninja 1.11 and torch 2.13.

ninja trusts its log and the mtimes: a truncated library that is old enough is "no work to do". It logs an output when
the command has ended, so an output without a line in the log was being written when its job died.

Such builds name the constant path. A job that did not see its cache there, e.g. because a plugin was missing, has built
at its run's own path, which no other job has. Its build is refused.
"""

from __future__ import annotations

import re

from warmstart.profiles.entry_files import EntryFiles, EntryInvalid
from warmstart.profiles.formats import elf, plain

BUILD, LOG, DEPS = "build.ninja", ".ninja_log", ".ninja_deps"
_LARGEST = 64 << 20
_LOG_HEADER = re.compile(rb"# ninja log v[0-9]{1,2}\n")
_LOG_LINE = re.compile(rb"[0-9]+\t[0-9]+\t[0-9]+\t([^\t\n]+)\t[0-9a-f]+\n")
_DEPS_HEADER = b"# ninjadeps\n"
OF_A_RUN = re.compile(rb"/[0-9]{1,10}\.[0-9a-f]{8}/cache/")  # Record.run_directory
_IS_DEPS = 1 << 31  # bit in a record's size: the record has dependencies, otherwise a path


def check_build(files: EntryFiles, directory: str, library: str) -> None:
    """Raise `EntryInvalid` unless the build of `library` (`<name>.so`) in `directory` ended and its files are whole.

    The reason is "made-elsewhere" if the build names the cache of one run. `directory` is relative to the stage, like
    the names of the entry's files. Objects and other libraries in it are checked, too.
    """
    here = {name.rpartition("/")[2]: name for name in files.names if name.rpartition("/")[0] == directory}
    if not {BUILD, LOG, library} <= here.keys():
        raise EntryInvalid("incomplete")
    plain.check_text(files, here[BUILD])
    if any(name in here and OF_A_RUN.search(files.read(here[name], _LARGEST)) for name in (BUILD, LOG, DEPS)):
        raise EntryInvalid("made-elsewhere")
    done = _outputs(files, here[LOG])
    if DEPS in here:
        _check_deps(files, here[DEPS])
    for name, path in here.items():
        if name.endswith((".so", ".o")):
            if name not in done:
                raise EntryInvalid("build-unfinished")
            elf.check(files, path, elf.SHARED if name.endswith(".so") else elf.RELOCATABLE)
    if any(name.endswith(".o") and name not in here for name in done):
        raise EntryInvalid("incomplete")


def _outputs(files: EntryFiles, log: str) -> set[str]:
    """Return the base names of the outputs in the log."""
    data = files.read(log, _LARGEST)
    header = _LOG_HEADER.match(data)
    if not header:
        raise EntryInvalid("build-unfinished")
    outputs = set()
    at = header.end()
    while at < len(data):
        line = _LOG_LINE.match(data, at)
        if not line:
            raise EntryInvalid("build-unfinished")
        outputs.add(line[1].rpartition(b"/")[2].decode("utf-8", "surrogateescape"))
        at = line.end()
    return outputs


def _check_deps(files: EntryFiles, name: str) -> None:
    """Walk the dependency records to the last byte. ninja would build again after a truncated one."""
    data = files.read(name, _LARGEST)
    at = len(_DEPS_HEADER) + 4
    if not data.startswith(_DEPS_HEADER) or len(data) < at:
        raise EntryInvalid("build-unfinished")
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "little")
        length = size & ~_IS_DEPS
        if length % 4 or length < (12 if size & _IS_DEPS else 8):
            raise EntryInvalid("build-unfinished")
        at += 4 + length
    if at != len(data):
        raise EntryInvalid("build-unfinished")
