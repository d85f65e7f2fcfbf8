r"""Parser of slurm.conf, plugstack.conf and the lines of job_container.conf. Needs no Slurm command and no daemon.

Slurm's rules: keys are case-insensitive, `#` starts a comment unless escaped, `\` continues a line, `include` is
relative to slurm.conf's directory, and the last value of a key counts, except that each hook may have several lines.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from typing import NamedTuple

DEEPEST = 8
LARGEST = 4 << 20  # characters
PLACES = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf")  # the second in configless mode
# A key begins where a word does, or a long word would be tried from each of its characters.
_PAIR = re.compile(r"""(?<![^\s=])([^\s=]+)\s*=\s*("[^"]*"|'[^']*'|\S*)""")


class SlurmConf(NamedTuple):
    """All values of each key (lower case), in order."""

    path: str
    values: dict[str, list[str]]
    missing: tuple[str, ...] = ()  # included files that cannot be read, with the reason

    def last(self, key: str, default: str = "") -> str:
        """Return the key's last value, which is the one that counts."""
        return (self.values.get(key.lower()) or [default])[-1]

    def all(self, key: str) -> list[str]:
        """Return the values of a key that may have several lines."""
        return [value for value in self.values.get(key.lower(), []) if value]

    def seconds(self, key: str, default: int) -> int:
        """Return the key's value in seconds, `default` if it is no number."""
        value = self.last(key)
        return int(value) if value.isdigit() else default

    def words(self, key: str) -> set[str]:
        """Return a comma-separated list in lower case."""
        return {word.strip().lower() for word in self.last(key).split(",") if word.strip()}

    def sibling(self, name: str) -> str:
        """Return the path of another file in the same directory."""
        return os.path.join(os.path.dirname(self.path), name)


class Plugin(NamedTuple):
    """One line of plugstack.conf."""

    path: str
    arguments: tuple[str, ...]
    required: bool = False  # without it srun, sbatch and the steps end with an error

    @property
    def name(self) -> str:
        """The file's name."""
        return os.path.basename(self.path)

    def argument(self, key: str) -> str:
        """Return the value of the last KEY=VALUE argument, or ""."""
        values = [text.partition("=")[2] for text in self.arguments if text.startswith(f"{key}=")]
        return values[-1] if values else ""


def find(path: str | None, prefix: str = "") -> str:
    """Return the path of slurm.conf: `path`, else $SLURM_CONF, else a default of Slurm under `prefix`; "" if none is.

    Built without --sysconfdir, Slurm has its own at PREFIX/etc (configure --help).
    """
    given = path or os.environ.get("SLURM_CONF")
    places = (f"{prefix}/etc/slurm.conf", *PLACES) if prefix else PLACES
    return given or next(filter(os.path.exists, places), "")


def read(path: str) -> SlurmConf:
    """Parse the file and everything that it includes. Raises `OSError` if it cannot be read."""
    values: dict[str, list[str]] = {}
    missing: list[str] = []
    for line in _lines(path, os.path.dirname(path), 0, missing):
        for key, value in _PAIR.findall(line):
            values.setdefault(key.lower(), []).append(value.strip("\"'"))
    return SlurmConf(path, values, tuple(missing))


def plugins(path: str) -> list[Plugin]:
    """Return plugstack.conf's plugins in order, [] if there is no such file.

    Raises `OSError` if it cannot be read, or what it includes.
    """
    return list(_plugins(path, 0)) if os.path.exists(path) else []


def pairs(path: str) -> list[list[tuple[str, str]]]:
    """Return the keys, in lower case, and values of each line of job_container.conf, in order."""
    lines = _lines(path, os.path.dirname(path), 0, [])
    return [[(key.lower(), value.strip("\"'")) for key, value in _PAIR.findall(line)] for line in lines]


def _plugins(path: str, depth: int) -> Iterator[Plugin]:
    if depth > DEEPEST:
        return
    for line in _joined(path):
        words = line.split()
        if words[0].lower() == "include" and len(words) > 1:
            for included in sorted(glob.glob(os.path.join(os.path.dirname(path), words[1]))):
                yield from _plugins(included, depth + 1)
        elif words[0].lower() in ("required", "optional") and len(words) > 1:
            yield Plugin(words[1], tuple(words[2:]), words[0].lower() == "required")


def _lines(path: str, base: str, depth: int, missing: list[str]) -> Iterator[str]:
    """Yield lines, with each `include` replaced by the lines of that file. Adds those that are `missing`."""
    for line in _joined(path):
        word, _, rest = line.partition(" ")
        if word.lower() == "include" and rest and depth < DEEPEST:
            included = os.path.join(base, rest.strip())
            try:
                yield from _lines(included, base, depth + 1, missing)
            except OSError as error:
                missing.append(f"{included} ({error.strerror})")
        else:
            yield line


def _joined(path: str) -> Iterator[str]:
    """Yield non-empty lines without comments, with continued lines joined. A line ends at a NUL, as in C."""
    with open(path, encoding="utf-8", errors="replace") as file:
        text = re.sub(r"\0[^\n]*", "", file.read(LARGEST))
    for line in text.replace("\\\n", "").splitlines():
        bare = re.sub(r"(?<!\\)#.*", "", line).strip().replace("\t", " ")
        if bare:
            yield bare
