"""Measure how costs grow, and write a section of the page on reliability, build/reliability/growth*.

`--only NAME` measures one thing. `--quick` takes smaller sizes and writes nothing. Exit status 1: something grew that
should be flat. Needs root, and an hour on two cores.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeVar

from tests.support.reports import REPORTS, write_fragment
from tools.growth import contention, hooks, maintenance
from tools.growth.chart import Series, columns
from tools.growth.measure import Cost

SLACK = 10  # system calls: which second it is, and what others do on the host, makes a few
P = TypeVar("P")
LAYERS = 15  # that a job's overlay has at most (docs/reference/seeding.md); each bundle is mounted for the job


class Measurement(NamedTuple):
    """One curve: its points as rows of a table, and what was not as it should be."""

    title: str
    promise: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]  # of each, the first word is its size
    series: list[Series]
    unit: str
    broken: list[str]


def of_hooks(
    title: str, promise: str, points: Sequence[hooks.Point], flat_from: int = 0, unit: str = ""
) -> Measurement:
    """Judge the two hooks' costs: from the size `flat_from` on, they make the same system calls."""
    flat = [point for point in points if point.size >= flat_from]
    broken = [
        f"{title}: {name} made {last} system calls{where} at {flat[-1].size:,}, {first} at {flat[0].size:,}"
        for name in ("prolog", "epilog")
        for where, key, slack in ((" on the store", "on_store", 0), ("", "calls", SLACK))
        for first, last in [(getattr(getattr(flat[0], name), key), getattr(getattr(flat[-1], name), key))]
        if last > first + slack
    ]
    rows = [
        (f"{point.size:,}{unit}", *(text for cost in (point.prolog, point.epilog) for text in _texts(cost)))
        for point in points
    ]
    header = (
        "",
        *(f"{name}: {what}" for name in ("prolog", "epilog") for what in ("calls", "on the store", "MiB", "ms")),
    )
    series = [
        Series("prolog", "a", [point.prolog.calls for point in points]),
        Series("epilog", "b", [point.epilog.calls for point in points]),
    ]
    return Measurement(title, promise, header, rows, series, "calls", broken)


def _texts(cost: Cost) -> Iterator[str]:
    yield from (f"{cost.calls:,}", str(cost.on_store), f"{cost.rss_mib:.1f}", f"{cost.ms:.0f}")


def of_maintenance(points: Sequence[maintenance.Point]) -> Measurement:
    """Judge the store's maintenance: the same memory whatever the store has, and so many calls for each bundle."""
    first, last = points[0], points[-1]
    broken = []
    if last.rss_mib > first.rss_mib * 1.5:
        broken.append(
            f"maintenance took {last.rss_mib:.0f} MiB with {last.bundles:,} bundles, {first.rss_mib:.0f} before"
        )
    if last.calls / last.bundles > first.calls / first.bundles * 1.2:
        broken.append(f"maintenance made {last.calls / last.bundles:.0f} calls for each of {last.bundles:,} bundles")
    columns: dict[str, Callable[[maintenance.Point], str]] = {
        "bundles": lambda point: f"{point.bundles:,}",
        "users": lambda point: f"{point.users:,}",
        "system calls": lambda point: f"{point.calls:,}",
        "for each bundle": lambda point: f"{point.calls / point.bundles:.0f}",
        "MiB": lambda point: f"{point.rss_mib:.0f}",
        "s": lambda point: f"{point.seconds:.0f}",
    }
    return Measurement(
        "maintain --store",
        "memory does not grow with the store; calls and time are proportional to the bundles",
        tuple(columns),
        _rows(points, columns),
        [Series("MiB", "a", [point.rss_mib for point in points])],
        "MiB",
        broken,
    )


def of_contention(points: Sequence[contention.Point]) -> Measurement:
    """Judge the flights: one import each, and nobody goes without the image."""
    broken = [f"{p.processes} prologs: {p.imports} imports" for p in points if p.imports != 1]
    broken += [f"{p.failed} of {p.processes} prologs got no image" for p in points if p.failed]
    columns: dict[str, Callable[[contention.Point], str]] = {
        "prologs": lambda point: f"{point.processes:,}",
        "imports": lambda point: str(point.imports),
        "questions to the store of each": lambda point: f"{point.calls_mean:.1f}",
        "most": lambda point: str(point.calls_most),
        "first to last released, s": lambda point: f"{point.spread_s:.1f}",
        "without image": lambda point: str(point.failed),
    }
    return Measurement(
        "one cold image",
        "one import however many want the image, and each of them gets it; what one waiter asks of the store does not"
        " grow with their number",
        tuple(columns),
        _rows(points, columns),
        [Series("questions", "a", [point.calls_mean for point in points])],
        "questions of each",
        broken,
    )


def _rows(points: Sequence[P], columns: Mapping[str, Callable[[P], str]]) -> list[list[str]]:
    return [[text(point) for text in columns.values()] for point in points]


MEASUREMENTS: dict[str, Callable[[bool], Measurement]] = {
    "images": lambda quick: of_hooks(
        "images in the store",
        "a warm prolog and epilog do not depend on them",
        list(hooks.images((10, 100) if quick else (10, 1_000, 10_000))),
    ),
    "bundles": lambda quick: of_hooks(
        "bundles in the namespace",
        f"a warm prolog and epilog do not depend on them beyond the {LAYERS} that a job can have mounted",
        list(hooks.bundles((1, LAYERS, 20) if quick else (1, LAYERS, 50, 200))),
        flat_from=LAYERS,
    ),
    "jobs": lambda quick: of_hooks(
        "jobs on the node",
        "a warm prolog and epilog do not depend on them",
        list(hooks.jobs((1, 4) if quick else (1, 8, 64))),
    ),
    "audit": lambda quick: of_hooks(
        "audit log",
        "a warm prolog and epilog do not depend on its size",
        list(hooks.audit((1, 10) if quick else (1, 100, 1024))),
        unit=" MiB",
    ),
    "maintenance": lambda quick: of_maintenance(
        list(maintenance.maintenance((100, 1_000) if quick else (1_000, 10_000, 100_000)))
    ),
    "contention": lambda quick: of_contention(list(contention.contention((4, 16) if quick else (10, 100, 1_000)))),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, write, and print what is not as promised."""
    parser = argparse.ArgumentParser(prog="python -m tools.growth")
    parser.add_argument("--only", action="append", choices=MEASUREMENTS)
    parser.add_argument("--quick", action="store_true")
    chosen = parser.parse_args(arguments)
    broken = []
    for name in chosen.only or MEASUREMENTS:
        found = MEASUREMENTS[name](chosen.quick)
        text = _table(name, found)
        if not chosen.quick:
            _write(name, found, text)
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
        broken += found.broken
    for problem in broken:
        sys.stderr.write(f"not as promised: {problem}\n")
    return 1 if broken else 0


def _table(name: str, found: Measurement) -> str:
    lines = [f"**{found.title[0].upper()}{found.title[1:]}**: {found.promise}.", ""]
    lines += [f"| {' | '.join(row)} |" for row in (found.header, ["---"] * len(found.header), *found.rows)]
    lines += ["", f"![{found.title}: {found.unit}](images/growth-{name}.svg)"]
    return "\n".join(lines) + "\n"


def _write(name: str, found: Measurement, table: str) -> None:
    """Write a measurement's table and its chart."""
    chart = columns([row[0] for row in found.rows], found.series, f"{found.title}: {found.unit}")
    write_fragment(f"growth-{name}.md", table)
    (REPORTS / f"growth-{name}.svg").write_text(chart)


if __name__ == "__main__":
    sys.exit(main())
