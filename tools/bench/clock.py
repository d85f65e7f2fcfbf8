"""Time whole processes and functions; peers take turns, so that a busy moment hits all of them."""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from tests.lib.bench_site import Command

_LAUNCHER = 'exec 9>"$1.lock"; flock -w 600 9; unsquashfs -l "$1" >/dev/null'
Act = Callable[[], object]


def launcher(image: Path | str) -> Command:
    """Return what launchers do today: a lock beside the image, and a full listing under it."""
    return Command(["/bin/bash", "-c", _LAUNCHER, "-", str(image)], {"PATH": "/usr/bin:/bin"})


def timed(act: Act) -> float:
    """Return how long `act` takes, in milliseconds."""
    started = time.perf_counter()
    act()
    return (time.perf_counter() - started) * 1000


def cpu_of_children() -> float:
    """Return the CPU time of all children that have ended, in milliseconds; theirs included."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (used.ru_utime + used.ru_stime) * 1000


def in_turns(measures: Mapping[str, Callable[[], float]], rounds: int) -> dict[str, list[float]]:
    """Return what each measure says in each round."""
    found: dict[str, list[float]] = {name: [] for name in measures}
    for _ in range(rounds):
        for name, measure in measures.items():
            found[name].append(measure())
    return found


def times(acts: Mapping[str, Act], rounds: int) -> dict[str, list[float]]:
    """Return how long each act takes in each round, in milliseconds."""
    return in_turns({name: partial(timed, act) for name, act in acts.items()}, rounds)
