r"""slurm.conf, plugstack.conf and job_container.conf as text: no Slurm command, no running daemon needed.

Slurm's rules: keys in any case, `#` to the end of the line unless escaped, `\` continues a line, `include`
relative to slurm.conf's directory; the last value of a key counts, except that hooks may stand in several lines.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterator
from typing import NamedTuple

DEEPEST = 8
LARGEST = 4 << 20  # characters
PLACES = ("/etc/slurm/slurm.conf", "/run/slurm/conf/slurm.conf")  # the second: configless
_PAIR = re.compile(r"""([^\s=]+)\s*=\s*("[^"]*"|'[^']*'|\S*)""")


class SlurmConf(NamedTuple):
    """All values of each key (lower case), in order."""

    path: str
    values: dict[str, list[str]]

    def last(self, key: str, default: str = "") -> str:
        """Return the value that counts."""
        return (self.values.get(key.lower()) or [default])[-1]

    def all(self, key: str) -> list[str]:
        """Return the values of a key that may stand in several lines."""
        return [value for value in self.values.get(key.lower(), []) if value]

    def seconds(self, key: str, default: int) -> int:
        """Return a number of seconds; `default` where there is none."""
        value = self.last(key)
        return int(value) if value.isdigit() else default

    def words(self, key: str) -> set[str]:
        """Return a comma-separated list in lower case."""
        return {word.strip().lower() for word in self.last(key).split(",") if word.strip()}

    def sibling(self, name: str) -> str:
        """Return the path of another of Slurm's files."""
        return os.path.join(os.path.dirname(self.path), name)


class Plugin(NamedTuple):
    """One line of plugstack.conf."""

    path: str
    arguments: tuple[str, ...]

    @property
    def name(self) -> str:
        """The file's name."""
        return os.path.basename(self.path)

    def argument(self, key: str) -> str:
        """Return the value of KEY=VALUE, or ""."""
        found = [text.partition("=")[2] for text in self.arguments if text.startswith(f"{key}=")]
        return found[-1] if found else ""


def find(path: str | None) -> str:
    """Return the path of slurm.conf: the given one, that of the environment, or one of Slurm's defaults."""
    given = path or os.environ.get("SLURM_CONF")
    return given or next((known for known in PLACES if os.path.exists(known)), PLACES[0])


def read(path: str) -> SlurmConf:
    """Return the file with all that it includes; `OSError` where one of them can't be read."""
    values: dict[str, list[str]] = {}
    for line in _lines(path, os.path.dirname(path), 0):
        for key, value in _PAIR.findall(line):
            values.setdefault(key.lower(), []).append(value.strip("\"'"))
    return SlurmConf(path, values)


def plugins(path: str) -> list[Plugin]:
    """Return plugstack.conf's plugins in order; none where there is no such file."""
    return list(_plugins(path, 0)) if os.path.exists(path) else []


def containers(path: str) -> list[dict[str, str]]:
    """Return the lines of job_container.conf, keys in lower case; none where there is no such file."""
    if not os.path.exists(path):
        return []
    lines = _lines(path, os.path.dirname(path), 0)
    return [{key.lower(): value.strip("\"'") for key, value in _PAIR.findall(line)} for line in lines]


def mount_points() -> list[str]:
    """Return where something is mounted on this host, as this process sees it (proc(5), mountinfo)."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="replace") as file:
        return [line.split()[4].encode("latin-1", "replace").decode("unicode_escape") for line in file]


def _plugins(path: str, depth: int) -> Iterator[Plugin]:
    if depth > DEEPEST:
        return
    for line in _joined(path):
        words = line.split()
        if words[0].lower() == "include" and len(words) > 1:
            for found in sorted(glob.glob(os.path.join(os.path.dirname(path), words[1]))):
                yield from _plugins(found, depth + 1)
        elif words[0].lower() in ("required", "optional") and len(words) > 1:
            yield Plugin(words[1], tuple(words[2:]))


def _lines(path: str, base: str, depth: int) -> Iterator[str]:
    """Yield lines with `include` replaced by what it names."""
    for line in _joined(path):
        word, _, rest = line.partition(" ")
        if word.lower() == "include" and rest and depth < DEEPEST:
            yield from _lines(os.path.join(base, rest.strip()), base, depth + 1)
        else:
            yield line


def _joined(path: str) -> Iterator[str]:
    """Yield lines without comments, continued ones joined, empty ones left out."""
    with open(path, encoding="utf-8", errors="replace") as file:
        text = file.read(LARGEST)
    for line in text.replace("\\\n", "").splitlines():
        bare = re.sub(r"(?<!\\)#.*", "", line).strip().replace("\t", " ")
        if bare:
            yield bare
