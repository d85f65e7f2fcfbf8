"""A cache of many files, seeded by an overlay and by its peers, and the harvest of a little beside a lot."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.lib.collecting import each_file
from tests.lib.overlay_place import Copy, Node, Run, a_node
from tools.bench.clock import in_turns, timed
from tools.bench.figures import Figure, Series

SEEDED, NEW = 5_000, 200


def measured(files: int, rounds: int) -> Iterator[Figure]:
    """Seed a cache of so many files on this machine's disk; collect new files beside seeded ones."""
    with a_node() as node:
        plain = node.base / "plain"
        copy = a_cache(node, files, plain)
        yield _seeding(node, copy, plain, files, rounds)
    with a_node() as node:
        yield _harvest(node, rounds)


def a_cache(node: Node, files: int, plain: Path) -> Copy:
    """Make a cache of small files as a bundle of the node, and as a plain directory."""
    content = {f"{number // 50}/{number}.x": b"%d" % number * 100 for number in range(files)}
    for path, data in content.items():
        (plain / path).parent.mkdir(parents=True, exist_ok=True)
        (plain / path).write_bytes(data)
    return node.bundle(content)


def _seeding(node: Node, copy: Copy, plain: Path, files: int, rounds: int) -> Figure:
    target = str(node.base / "to")
    numbers = iter(range(1_000))
    _show(node, next(numbers), copy)  # the node's first job mounts the bundle

    def copied(*argv: str) -> float:
        taken = timed(partial(subprocess.run, argv, check=True, capture_output=True))
        shutil.rmtree(target)
        return taken

    measures: dict[str, Callable[[], float]] = {
        "overlay": lambda: timed(partial(_show, node, next(numbers), copy)),
        "cp -a": partial(copied, "/bin/cp", "-a", str(plain), target),
        "rsync -a": partial(copied, "/usr/bin/rsync", "-a", str(plain), target),
        "unsquashfs": partial(copied, "/usr/bin/unsquashfs", "-quiet", "-no-progress", "-d", target, copy.path),
    }
    found = in_turns(measures, rounds)
    ours = Series("warmstart", found.pop("overlay"))
    peers = [Series(name, values) for name, values in found.items()]
    return Figure("seeding", f"seed a cache of {files:,} files", ours, peers)


def _show(node: Node, number: int, copy: Copy) -> None:
    node.run(f"{number}.aaaaaaaa").show(copy)


def _harvest(node: Node, rounds: int) -> Figure:
    run = node.run("1.aaaaaaaa")
    run.show(node.bundle({f"{number // 50}/{number}.x": b"x" * 1000 for number in range(SEEDED)}))

    def compile_more() -> None:
        os.mkdir("new")
        for number in range(NEW):
            Path(f"new/{number}.x").write_bytes(b"y" * 1000)

    run.as_job(compile_more)
    numbers = iter(range(1_000))

    def collect() -> float:
        stage = node.base / f"stage{next(numbers)}"
        return timed(partial(_collect, run, stage))

    def rsync() -> float:
        target = str(node.base / f"rsync{next(numbers)}")
        return timed(partial(subprocess.run, ["/usr/bin/rsync", "-a", str(run.cache), target], check=True))

    found = in_turns({"ours": collect, "rsync": rsync}, rounds)
    peer = Series("rsync -a of the tree", found["rsync"])
    what = f"collect {NEW} new entries beside {SEEDED:,} seeded"
    return Figure("seeding", what, Series("warmstart", found["ours"]), (peer,))


def _collect(run: Run, stage: Path) -> None:
    assert len(run.harvest(stage, each_file).entries) == NEW
