"""What a run of a tool showed of its profile: a line in build/tools.jsonl, and damage to the entries that it left."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path

from warmstart.profiles import naming, registry
from warmstart.profiles.judge import judge

RESULTS = Path(__file__).resolve().parents[2] / "build" / "tools.jsonl"
VARIANTS = 200
PAGE = 4096


def _truncated(content: bytes, dice: random.Random) -> bytes:
    """Cut off the end."""
    return content[: dice.randrange(len(content))]


def _zero_tailed(content: bytes, dice: random.Random) -> bytes:
    """Keep the length but zero the end, as a crash of a file system does."""
    length = dice.randrange(1, len(content))
    return content[:-length] + bytes(length)


def _zero_paged(content: bytes, dice: random.Random) -> bytes:
    """Zero one page."""
    at = dice.randrange((len(content) + PAGE - 1) // PAGE) * PAGE
    length = min(PAGE, len(content) - at)
    return content[:at] + bytes(length) + content[at + length :]


def _bit_flipped(content: bytes, dice: random.Random) -> bytes:
    """Flip one bit."""
    at = dice.randrange(len(content))
    return content[:at] + bytes([content[at] ^ 1 << dice.randrange(8)]) + content[at + 1 :]


_MUTATIONS = (_truncated, _zero_tailed, _zero_paged, _bit_flipped)  # as in docs/cache-formats.md, Which damage is found


def write(**fields: object) -> None:
    """Add a line to the results."""
    RESULTS.parent.mkdir(exist_ok=True)
    with RESULTS.open("a") as file:
        file.write(json.dumps(fields) + "\n")


def versions(python: str, distributions: list[str]) -> dict[str, str]:
    """Return the versions of distributions that an interpreter has."""
    program = "import sys; from importlib.metadata import version; print(*map(version, sys.argv[1:]), sep='\\n')"
    argv = [python, "-c", program, *distributions]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, env={})
    return dict(zip(distributions, done.stdout.split(), strict=True))


def has(python: str, distribution: str) -> bool:
    """Return whether an interpreter has a distribution."""
    program = "import sys; from importlib.metadata import version; version(sys.argv[1])"
    argv = [python, "-c", program, distribution]
    return subprocess.run(argv, capture_output=True, check=False, env={}).returncode == 0


def damage(profile_name: str, directory: Path) -> tuple[int, int]:
    """Damage files of a profile's entries, one at a time; return how many variants there were, and were refused."""
    profile = registry.get(profile_name)
    entries: dict[str, list[str]] = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_file() and path.stat().st_size and (entry := naming.entry_of(profile, name)):
            entries.setdefault(entry, []).append(name)
    dice = random.Random(20)
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert set(dict(judge(profile_name, fd, entries)).values()) == {None}
        tried = refused = 0
        while tried < VARIANTS:
            entry = dice.choice(list(entries))
            path = directory / dice.choice(entries[entry])
            content, times = path.read_bytes(), path.stat()
            damaged = _MUTATIONS[tried % len(_MUTATIONS)](content, dice)
            if damaged == content:
                continue
            tried += 1
            for written, is_judged in ((damaged, True), (content, False)):
                path.write_bytes(written)
                os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
                if is_judged:
                    refused += dict(judge(profile_name, fd, {entry: entries[entry]}))[entry] is not None
    finally:
        os.close(fd)
    return tried, refused
