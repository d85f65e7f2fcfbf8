"""Run the bench; prints one table and exits 0: figures are for people, never a test."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from tests.bench import seeding, waiting
from tests.bench.bench_site import BenchSite, bench_site
from tests.bench.clock import LAUNCHER, Command, medians, once

FILES = 200_000
ROUNDS = 41


class Row(NamedTuple):
    """One line of the table."""

    what: str
    ours: str
    peer: str
    ratio: str


def main() -> int:
    """Measure everything."""
    console = Console()
    table = Table("what", "warmstart", "peer", "ratio")
    with console.status("preparing an image of 200,000 files") as status, bench_site(FILES) as site:
        for row in measured(site):
            status.update(row.what)
            table.add_row(*row)
    console.print(table)
    return 0


def measured(site: BenchSite) -> Iterator[Row]:
    """Measure one thing after the other."""
    yield from warm_prolog(site)
    yield task_prolog(site)
    yield from waiters(site)
    yield store_calls(site)
    yield from (Row(*figures) for figures in seeding.measured())


def warm_prolog(site: BenchSite) -> Iterator[Row]:
    """Time a prolog whose image is there, beside the launchers' check and a bare interpreter."""
    once(site.hook("prolog"))  # compiles the policy
    python = "/usr/bin/python3"
    times = medians(
        {
            "ours": site.hook("prolog"),
            "launcher": Command(["/bin/bash", "-c", LAUNCHER, "-", str(site.image)], {"PATH": "/usr/bin:/bin"}),
            "bare": Command([python, "-I", "-c", ""]),
        },
        ROUNDS,
    )
    ours = times["ours"]
    for peer, name in (("launcher", "flock + unsquashfs -l"), ("bare", "bare python3 -I")):
        ratio = f"{ours / times[peer]:.2f}"
        yield Row("warm prolog, image of 200,000 files", f"{ours:.1f} ms", f"{name}: {times[peer]:.1f} ms", ratio)


def task_prolog(site: BenchSite) -> Row:
    """Time what every task pays, beside reading the same file."""
    view = site.prefix / "var/lib/warmstart/n1/view/7/environment"
    times = medians(
        {"ours": site.hook("task-prolog"), "cat": Command(["/bin/sh", "-c", f"cat {view}"], {"PATH": "/bin"})},
        ROUNDS * 5,
    )
    ours, cat = times["ours"], times["cat"]
    return Row("task prolog", f"{ours:.2f} ms", f"sh -c 'cat FILE': {cat:.2f} ms", f"{ours / cat:.2f}")


def waiters(site: BenchSite) -> Iterator[Row]:
    """Time the release of few and of many waiters."""
    for count in (8, 64):
        ours, peer = waiting.prologs(site, count), waiting.launchers(site, count)
        what = f"{count} waiters, published to last released"
        yield Row(what, f"{ours:.2f} s", f"flock + unsquashfs -l: {peer:.2f} s", f"{ours / peer:.2f}")


def store_calls(site: BenchSite) -> Row:
    """Count the system calls of a warm prolog on the store, with one image in it and with 1,000."""
    few = calls_on_store(site)
    images = site.base / "store" / "images"
    for number in range(1000):
        (images / f"{number:064x}.x86_64.sqsh").write_bytes(b"")
    many = calls_on_store(site)
    return Row("store system calls, warm prolog", str(few), "with 1,000 more images", str(many))


def calls_on_store(site: BenchSite) -> int:
    """Count calls that name the store or use a descriptor of it."""
    log = site.base / "strace.log"
    command = site.hook("prolog")
    argv = ["/usr/bin/strace", "-f", "-y", "-o", str(log), *command.argv]
    subprocess.run(argv, env=dict(command.env), check=True)
    store = re.escape(str(site.base / "store"))
    return sum(bool(re.search(rf'(?:"|<){store}/', line)) for line in log.read_text().splitlines())


if __name__ == "__main__":
    sys.exit(main())
