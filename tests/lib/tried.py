"""What a run of a tool showed of its profile: the files of docs/results, and damage to the entries that it left.

A file is one JSON object of a `Result`; `tools.tried` makes the table of docs/reference/profiles.md from all of them.
They are written by runs alone, and only if WARMSTART_RESULTS is set: else each run of the tests would change the
documents.
"""

from __future__ import annotations

import json
import os
import platform
import random
import subprocess
import time
from pathlib import Path
from typing import NamedTuple

from tests.lib.mutations import MUTATIONS
from warmstart.profiles import facts, registry
from warmstart.profiles.judge import judge

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"
VARIANTS = 200


class Run(NamedTuple):
    """One job: the tool's own counters, and the seconds from its first look-up to its result."""

    hits: int
    misses: int
    seconds: float


class Result(NamedTuple):
    """A cold job, and a warm one on another node."""

    profile: str
    job: str  # the file in tests/tools/jobs, with its argument
    tools: dict[str, str]  # distribution → version; the first is the tool
    hardware: dict[str, str]  # `cpu` and `gpu`; for a GPU its `driver`, too
    through: str  # what ran the hooks: `Slurm 22.05.8`, or `hooks by hand` where there is no Slurm
    date: str  # of the run: 2026-01-31
    cold: Run
    warm: Run
    harvested: int  # entries of the cold job that were published
    rejected: int  # entries of the cold job that the validator refused
    seeded: int  # entries that the warm job was shown
    damaged: int  # variants of these entries, each with one damaged file
    refused: int  # of the damaged ones by the validator


def write(result: Result) -> None:
    """Write the result's file if WARMSTART_RESULTS is set."""
    if not os.environ.get("WARMSTART_RESULTS"):
        return
    tool, version = next(iter(result.tools.items()))
    gpu = "" if result.hardware["gpu"] == facts.NONE else f"-{result.hardware['gpu']}"
    fields = {**result._asdict(), "cold": result.cold._asdict(), "warm": result.warm._asdict()}
    RESULTS.mkdir(exist_ok=True)
    amd = "-amd" if result.job.endswith(" hip") else ""
    through = result.through.lower().replace(" ", "-")
    name = f"{result.profile}-{tool}-{version}{amd}{gpu}-{through}.json"
    (RESULTS / name).write_text(json.dumps(fields, indent=2) + "\n")


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


def hardware() -> dict[str, str]:
    """Return this machine's CPU and GPUs as a prolog sees them, the CPU by the name that people know."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    about = {"cpu": names[0] if names else platform.machine(), "gpu": facts.gpu()}
    return about if about["gpu"] == facts.NONE else {**about, "driver": facts.driver()}


def slurm() -> str:
    """Return the release of Slurm whose hooks ran: `Slurm 22.05.8`."""
    done = subprocess.run(["slurmd", "-V"], capture_output=True, text=True, check=True)
    return f"Slurm {done.stdout.split()[-1]}"


def today() -> str:
    """Return the date in UTC."""
    return time.strftime("%Y-%m-%d", time.gmtime())


def damage(profile_name: str, directory: Path) -> tuple[int, int]:
    """Damage files of a profile's entries, one at a time; return how many variants there were, and were refused."""
    profile = registry.get(profile_name)
    entries: dict[str, list[str]] = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_file() and path.stat().st_size and (entry := profile.entry_of(name)):
            entries.setdefault(entry, []).append(name)
    dice = random.Random(20)
    mutations = [mutate for mutate, _ in MUTATIONS.values()]
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        assert set(judge(profile_name, fd, entries).values()) == {None}
        tried = refused = 0
        while tried < VARIANTS:
            entry = dice.choice(list(entries))
            path = directory / dice.choice(entries[entry])
            content, times = path.read_bytes(), path.stat()
            damaged = mutations[tried % len(mutations)](content, dice)
            if damaged == content:
                continue
            tried += 1
            for written, is_judged in ((damaged, True), (content, False)):
                path.write_bytes(written)
                os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
                if is_judged:
                    refused += judge(profile_name, fd, {entry: entries[entry]})[entry] is not None
    finally:
        os.close(fd)
    return tried, refused
