"""What a run of the bench has found: series of values, ours and our peers', and build/bench.json."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

GROUPS = ("hooks", "network", "calls", "waiting", "import", "seeding", "overlay", "trees", "jobs")


class Series(NamedTuple):
    """The values of one contestant; milliseconds, or a count."""

    name: str
    values: Sequence[float]
    goal: float | None = None  # of a peer: our median may be at most this many times its median

    @property
    def median(self) -> float:
        """The middle value."""
        return statistics.median(self.values)

    def quantile(self, share: float) -> float:
        """Return the smallest value that this share of all values does not exceed (nearest rank)."""
        ordered = sorted(self.values)
        return ordered[max(0, -int(-share * len(ordered) // 1) - 1)]


class Figure(NamedTuple):
    """One thing that was measured."""

    group: str  # of `GROUPS`
    what: str
    ours: Series
    peers: Sequence[Series] = ()
    unit: str = "ms"  # or what is counted

    def ratio(self, peer: Series) -> str:
        """Return how many times the peer's median ours is, as text with two digits."""
        found = self.ours.median / peer.median
        return f"{found:.2f}" if found >= 0.1 else f"{found:.2g}"


def show(value: float, unit: str) -> str:
    """Return a value with its unit, three digits long."""
    if unit != "ms":
        return f"{value:,.0f} {unit}".strip()
    return f"{value / 1000:.3g} s" if value >= 1000 else f"{value:.3g} ms"


class Machine(NamedTuple):
    """Where the bench ran. No host names."""

    cpu: str
    cpus: int
    memory_gib: int
    kernel: str
    python: str
    slurm: str
    squashfs_tools: str
    file_system: str


class Results(NamedTuple):
    """One run of the bench."""

    made: str  # when, and of which commit
    rounds: str  # "all" | "quick"
    load: float  # of the machine over the minute before the run; more than its CPUs: figures are too high
    machine: Machine
    figures: Sequence[Figure]


def this_machine() -> Machine:
    """Describe this machine."""
    cpuinfo = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.partition(":")[2].strip() for line in cpuinfo if line.startswith("model name")), "")
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        cpu=model or platform.machine(),
        cpus=os.cpu_count() or 1,
        memory_gib=round(memory / (1 << 30)),
        kernel=".".join(platform.release().split(".")[:2]),
        python=platform.python_version(),
        slurm=_first_line("/usr/sbin/slurmctld", "-V"),
        squashfs_tools=_first_line("/usr/bin/mksquashfs", "-version").partition(" (")[0],
        file_system=_file_system("/var/tmp"),
    )


def _file_system(path: str) -> str:
    """Return the type of the file system of a path. An ext4 without a journal is told: there, new files are slow."""
    device, kind = _first_line("/usr/bin/findmnt", "-no", "SOURCE,FSTYPE", "--target", path).split()
    is_slow = kind == "ext4" and not list(Path("/proc/fs/jbd2").glob(f"{os.path.basename(device)}-*"))
    return f"{kind} without a journal" if is_slow else kind


def write(results: Results, path: Path) -> None:
    """Write build/bench.json: every value, rounded to microseconds."""
    path.parent.mkdir(exist_ok=True)
    figures = [
        figure._asdict() | {"ours": _as_object(figure.ours), "peers": [_as_object(peer) for peer in figure.peers]}
        for figure in results.figures
    ]
    machine = results.machine._asdict()
    found = {**results._asdict(), "machine": machine, "figures": figures}
    path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


def read(path: Path) -> Results:
    """Return the results in a file that `write` made."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    figures = [
        Figure(**figure | {"ours": Series(**figure["ours"]), "peers": [Series(**peer) for peer in figure["peers"]]})
        for figure in found["figures"]
    ]
    return Results(**found | {"machine": Machine(**found["machine"]), "figures": figures})


def _as_object(series: Series) -> dict[str, Any]:
    return series._asdict() | {"values": [round(value, 3) for value in series.values]}


def _first_line(*argv: str) -> str:
    if not os.path.exists(argv[0]):
        return "none"
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    return (done.stdout or done.stderr).partition("\n")[0].strip()
