"""Time whole processes; peers alternate, so that a busy moment hits both."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

# What launchers do today: a lock beside the image, and a full listing under it.
LAUNCHER = 'exec 9>"$1.lock"; flock -w 600 9; unsquashfs -l "$1" >/dev/null'


class Command(NamedTuple):
    """A command line and all of its environment."""

    argv: Sequence[str]
    env: Mapping[str, str] = {}


def medians(commands: Mapping[str, Command], rounds: int) -> dict[str, float]:
    """Return each command's median wall time, milliseconds, over `rounds` alternating runs."""
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, command in commands.items():
            started = time.perf_counter()
            subprocess.run(command.argv, env=dict(command.env), check=True, stdout=subprocess.DEVNULL)
            times[name].append((time.perf_counter() - started) * 1000)
    return {name: sorted(values)[rounds // 2] for name, values in times.items()}


def once(command: Command) -> float:
    """Return one run's wall time, milliseconds."""
    return medians({"": command}, 1)[""]
