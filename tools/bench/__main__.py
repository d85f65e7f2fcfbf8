r"""Run the bench: build/bench.json, and a table. Figures are for people, who copy them to docs/performance.md; no test.

    python -m tools.bench [--quick] [--results FILE] [GROUP…]

Without groups all are measured; otherwise the figures of the others, and the machine, are those of the last run, from
build/bench.json. Needs root. Under five minutes with --quick on an idle machine of two CPUs, which should do nothing
else; `trees` takes three more, or 25.

/var/tmp should be on a file system like a node's. On ext4 without a journal, as some virtual machines have, a new file
skips each inode that was deleted in the last minute (`recently_deleted` in Linux's fs/ext4/ialloc.c), and rounds that
follow each other delete thousands. There, give the bench a file system of its own:

    truncate --size=12G FILE; mkfs.ext4 -q FILE
    unshare --mount sh -c 'mount -o loop FILE /var/tmp; chmod 1777 /var/tmp; make bench'

`network` and `trees` are measured where GlusterFS is installed (glusterfs-server, glusterfs-client). `trees` installs
torch and numba with pip, and needs 8 GiB of memory and as much below /var/tmp.

`enroot import` is a peer where enroot is installed, such as in a root file system of tests/releases (CONTRIBUTING.md,
Real pyxis and enroot). What is written into the checkout is lost there, so `import` takes another file along; and it
needs all CPUs, where tests of clusters have one:

    cp build/bench.json "$root/var/tmp/"
    tests/releases/enter "$root" env PYTHONPATH=hooks taskset --cpu-list "0-$(($(nproc) - 1))" \
        .venv/bin/python -m tools.bench --results /var/tmp/bench.json import
    cp "$root/var/tmp/bench.json" build/
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from tests.lib import gluster
from tests.lib.bench_site import BenchSite, bench_site, network_store
from tests.lib.reports import made
from tools.bench import figures, hooks, importing, jobs, overlay, seeding, trees, waiting
from tools.bench.figures import GROUPS, Figure, Results, show

REPOSITORY = Path(__file__).resolve().parents[2]
FILES = 200_000  # in the image
LAYERS = ("/usr/bin", "/usr/lib/python3", "/usr/lib/x86_64-linux-gnu")
OF_SITE = ("hooks", "calls", "waiting", "import")  # groups that need an installation and an image


class Rounds(NamedTuple):
    """How much is measured."""

    hooks: int
    waiters: tuple[int, ...]
    waiting: int
    layers: tuple[str, ...]
    importing: int
    seeded: int  # files
    seeding: int
    overlay: int
    jobs: int  # one after the other
    batches: int  # of 16 jobs
    environment: trees.Import
    trees: dict[int, int]  # rounds of so many processes at once


ALL = Rounds(41, (8, 64), 5, LAYERS, 5, 50_000, 7, 15, 40, 6, trees.TORCH, {1: 5, 8: 3, 32: 2})
QUICK = Rounds(15, (8, 32), 2, LAYERS[1:2], 3, 10_000, 3, 7, 12, 2, trees.NUMBA, {1: 3, 8: 1})


def main() -> int:
    """Measure, and write everything down."""
    parser = argparse.ArgumentParser(prog="python -m tools.bench")
    parser.add_argument("--quick", action="store_true", help="few rounds, smaller images and caches")
    parser.add_argument("--results", type=Path, default=REPOSITORY / "build" / "bench.json", metavar="FILE")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"of {', '.join(GROUPS)}")
    options = parser.parse_args()
    if unknown := set(options.groups) - {*GROUPS}:
        parser.error(f"no such group: {', '.join(sorted(unknown))}")
    if os.geteuid() != 0:
        parser.error("this needs root: it makes accounts, mounts and a cluster")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that everything is removed
    rounds = "quick" if options.quick else "all"
    run = Results(made(), rounds, os.getloadavg()[0], figures.this_machine(), [])
    if options.groups and options.results.exists():
        run = figures.read(options.results)
    found = [figure for figure in run.figures if figure.group not in options.groups]
    console = Console()
    with console.status("preparing") as status:
        for figure in measured(QUICK if options.quick else ALL, set(options.groups or GROUPS)):
            found.append(figure)
            status.update(figure.what)
    run = run._replace(figures=found)
    figures.write(run, options.results)
    console.print(as_table(run))
    return 0


def measured(rounds: Rounds, groups: set[str]) -> Iterator[Figure]:
    """Measure one thing after the other."""
    if not groups.isdisjoint(OF_SITE):
        with bench_site(FILES) as site:
            yield from _of_site(site, rounds, groups)
    if "network" in groups and all(os.path.exists(program) for program in gluster.PROGRAMS):
        with bench_site(FILES, make_store=network_store) as site:
            yield from hooks.on_network(site, rounds.hooks)
    if "trees" in groups and all(os.path.exists(program) for program in gluster.PROGRAMS):
        with bench_site(1) as site:
            yield from trees.measured(site, rounds.environment, rounds.trees)
    if "seeding" in groups:
        yield from seeding.measured(rounds.seeded, rounds.seeding)
    if "overlay" in groups:
        yield from overlay.measured(rounds.seeded // 2, 2_000, rounds.overlay)
    if "jobs" in groups:
        yield from jobs.measured(rounds.jobs, rounds.batches)


def _of_site(site: BenchSite, rounds: Rounds, groups: set[str]) -> Iterator[Figure]:
    if not groups.isdisjoint(("hooks", "calls")):
        yield from (figure for figure in hooks.measured(site, rounds.hooks) if figure.group in groups)
    if "waiting" in groups:
        yield from waiting.measured(site, rounds.waiters, rounds.waiting)
    if "import" in groups:
        yield from importing.measured(site, rounds.layers, rounds.importing)


def as_table(run: Results) -> Table:
    """Return the table for the terminal."""
    table = Table("what", "whose", "median", "5 %", "95 %", "ratio", "goal")
    for figure in run.figures:
        for series in (figure.ours, *figure.peers):
            values = (show(value, figure.unit) for value in (series.median, *map(series.quantile, (0.05, 0.95))))
            is_ours = series is figure.ours
            ratio = "" if is_ours else figure.ratio(series)
            goal = "" if series.goal is None else f"{series.goal:g}"
            table.add_row(figure.what if is_ours else "", series.name, *values, ratio, goal)
    return table


if __name__ == "__main__":
    sys.exit(main())
