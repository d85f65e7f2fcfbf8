"""docs/performance.md and its plots, from the results of a run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tools.bench import plots
from tools.bench.figures import Figure, Results, Series

INTRODUCTION = """\
# Performance

Written by `make bench`; not edited by hand. Everything is timed from outside, as whole processes or jobs, and
contestants take turns. Values are medians, in brackets ours from the 5th to the 95th percentile, which is the line in
the plots; the box has the middle half. A ratio is ours to the peer's: less than 1 is faster. Compare ratios: times
depend on the machine.
"""


class Group(NamedTuple):
    """A section of the page."""

    title: str
    text: str


GROUPS = {
    "hooks": Group(
        "A warm job's hooks",
        "The image is in the store, three profiles are seeded from ten bundles, and the policy has twenty rules. "
        "`flock` and `unsquashfs -l` are what launchers do that share images without warmstart: they list an image of "
        "200,000 files under a lock.",
    ),
    "network": Group(
        "A warm job's hooks on a network file system",
        "The same with a store on GlusterFS 10.3, three bricks in memory and a client, all on this machine; the "
        "launchers' image is on the volume, too.",
    ),
    "calls": Group(
        "System calls on the store",
        "Of a warm prolog, counted with strace. They do not depend on how much is in the store.",
    ),
    "waiting": Group(
        "Jobs that wait for one image",
        "From the image's publication to the release of the last job.",
    ),
    "import": Group(
        "Import of an image",
        "From a registry on this machine to a squashfs that a container can start from; nothing is cached. This image "
        "has few and large files.",
    ),
    "seeding": Group(
        "Seeding and harvest",
        "A bundle of small files, which lies on the node, becomes a job's cache; and what a job added is collected.",
    ),
    "overlay": Group(
        "Work in the seeded cache",
        "All files are in memory, and what counts is CPU time. An overlay of a plain directory, without anything of "
        "warmstart's, costs as much.",
    ),
    "trees": Group(
        "Imports from a tree on a network file system",
        "`python -c 'import torch, numba'` from a tree of small files. The volume is GlusterFS 10.3, one brick in "
        "memory and one client, all on this machine; each operation takes a round trip longer (`delay-gen`). Cold: "
        "the file system is mounted anew and the kernel's caches are dropped. Again: at once after that. CPU time is "
        "with that of the volume's client and brick: where processes take all CPUs, the ratio is that of CPU times. "
        "With the copy, the look-ups of the tree's path are left.",
    ),
    "jobs": Group(
        "A job's own clock",
        "From slurmctld's allocation to the first line of a batch script, on a real cluster of four nodes on this "
        "machine. With warmstart, the job has an image and two profiles, one of them seeded.",
    ),
}


def write(results: Results, page: Path, images: Path) -> None:
    """Write the page, and a plot for each group of times into `images`, which lies beside it."""
    images.mkdir(parents=True, exist_ok=True)
    page.write_text("\n".join(_page(results, images)), encoding="utf-8")


def _page(results: Results, images: Path) -> Iterator[str]:
    machine = results.machine
    yield INTRODUCTION
    yield f"| run of | {results.made}{', with few rounds (`QUICK=1`)' if results.rounds == 'quick' else ''} |"
    yield "|---|---|"
    yield f"| machine | {machine.cpu}, {machine.cpus} CPUs, {machine.memory_gib} GiB; {machine.file_system} |"
    yield f"| software | Linux {machine.kernel}, Python {machine.python}, {machine.slurm}, {machine.squashfs_tools} |"
    yield f"| load before the run | {results.load:.1f} |"
    for group, (title, text) in GROUPS.items():
        figures = [figure for figure in results.figures if figure.group == group]
        if not figures:
            continue
        yield f"\n## {title}\n"
        yield from _wrapped(text)
        if group in results.later:
            yield f"\nRun of {results.later[group]}."
        if times := [figure for figure in figures if figure.unit == "ms"]:
            name = f"performance-{group}.svg"
            (images / name).write_text(plots.svg(times, title), encoding="utf-8")
            yield f"\n![{title}]({images.name}/{name})"
        yield "\n| | ours | peers: median, ratio |"
        yield "|---|---|---|"
        yield from map(_row, figures)
    yield ""


def _row(figure: Figure) -> str:
    ours = figure.ours
    median, least, most = (plots.show(value, figure.unit) for value in (ours.median, *map(ours.quantile, (0.05, 0.95))))
    spread = f" ({least} to {most})" if least != most else ""
    return f"| {figure.what} | {median}{spread} | {'; '.join(_of(peer, figure) for peer in figure.peers)} |"


def _of(peer: Series, figure: Figure) -> str:
    goal = f" (goal: {peer.goal:g})" if peer.goal is not None else ""
    return f"{peer.name} {plots.show(peer.median, figure.unit)}, {figure.ratio(peer)}{goal}"


def _wrapped(text: str) -> Iterator[str]:
    line = ""
    for word in text.split():
        if line and len(line) + 1 + len(word) > 120:
            yield line
            line = word
        else:
            line = f"{line} {word}".lstrip()
    yield line
