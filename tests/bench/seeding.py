"""A cache of 50,000 files, seeded by an overlay and by its peers; work in it; the harvest of a little beside a lot."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from tests.support.overlay_place import JOB, SUBDIR, Node, Run, a_node
from warmstart.harvest.collect import HarvestLimits, Stage, collect_view
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir
from warmstart.seed import overlay
from warmstart.seed.node_cache import Copy

FILES = 50_000
SEEDED, NEW = 5_000, 200
WRITTEN = 2_000
ROUNDS = 5
Figures = tuple[str, str, str, str]


def measured() -> Iterator[Figures]:
    """Measure on this machine's disk; each is what it is, ours, the peer, the ratio."""
    with a_node() as node:
        content = {f"{number // 50}/{number}.x": b"%d" % number * 100 for number in range(FILES)}
        plain = node.base / "plain"
        for path, data in content.items():
            (plain / path).parent.mkdir(parents=True, exist_ok=True)
            (plain / path).write_bytes(data)
        copy = node.bundle(content)
        yield from _seeding(node, copy, plain)
        yield from _working(node, copy, plain)
    with a_node() as node:
        yield _harvest(node)


def _seeding(node: Node, copy: Copy, plain: Path) -> Iterator[Figures]:
    first, *others = (_timed(partial(_shown, node, number, copy)) for number in range(ROUNDS))
    ours = min(others)
    what = f"seed a cache of {FILES:,} files"
    yield what, _ms(ours), f"the node's first job: {_ms(first)}", f"{ours / first:.2f}"
    peers: dict[str, Callable[[Path], list[str]]] = {
        "cp -a": lambda to: ["/bin/cp", "-a", str(plain), str(to)],
        "rsync -a": lambda to: ["/usr/bin/rsync", "-a", str(plain), str(to)],
        "unsquashfs": lambda to: ["/usr/bin/unsquashfs", "-quiet", "-no-progress", "-d", str(to), copy.path],
    }
    for name, argv in peers.items():
        to = node.base / "to"
        peer = _timed(partial(subprocess.run, argv(to), check=True, capture_output=True))
        shutil.rmtree(to)
        yield what, _ms(ours), f"{name}: {_ms(peer)}", f"{ours / peer:.4f}"


def _shown(node: Node, number: int, copy: Copy) -> None:
    node.run(f"{number}.aaaaaaaa").show(copy)


def _working(node: Node, copy: Copy, plain: Path) -> Iterator[Figures]:
    """Time what a job does in its view, beside a plain directory with the same files, both for the second time."""
    run = node.run("1.bbbbbbbb")
    run.show(copy)
    for what, act in ((f"read {FILES:,} files", _read), (f"write {WRITTEN:,} files", _write)):
        times = {}
        for place, top in (("ours", run.cache), ("peer", plain)):
            act(top)
            times[place] = min(_timed(partial(act, top)) for _ in range(3))
        ours, peer = times["ours"], times["peer"]
        yield what, _ms(ours), f"plain directory: {_ms(peer)}", f"{ours / peer:.2f}"


def _read(top: Path) -> None:
    for directory, _, names in os.walk(top):
        for name in names:
            with open(os.path.join(directory, name), "rb") as file:
                file.read()


def _write(top: Path) -> None:
    target = Path(tempfile.mkdtemp(dir=top))
    for number in range(WRITTEN):
        (target / str(number)).write_bytes(b"x" * 1000)
    shutil.rmtree(target)


def _harvest(node: Node) -> Figures:
    run = node.run("1.aaaaaaaa")
    run.show(node.bundle({f"{number // 50}/{number}.x": b"x" * 1000 for number in range(SEEDED)}))

    def compile_more() -> None:
        os.mkdir("new")
        for number in range(NEW):
            Path(f"new/{number}.x").write_bytes(b"y" * 1000)

    run.as_job(compile_more)
    ours = min(_timed(partial(_harvested, run, node.base / f"stage{number}")) for number in range(ROUNDS))
    argv = ["/usr/bin/rsync", "-a", str(run.cache)]
    targets = [str(node.base / f"rsync{number}") for number in range(ROUNDS)]
    peer = min(_timed(partial(subprocess.run, [*argv, target], check=True)) for target in targets)
    what = f"collect {NEW} new entries beside {SEEDED:,} seeded"
    return what, _ms(ours), f"rsync -a of the tree: {_ms(peer)}", f"{ours / peer:.2f}"


def _harvested(run: Run, stage: Path) -> None:
    stage.mkdir(mode=0o700)
    limits = HarvestLimits(1 << 30, 1000, after(60))
    with (
        opened_dir(str(run.path)) as base,
        opened_dir(str(stage)) as fd,
        overlay.frozen_view(base, SUBDIR, SUBDIR, after(5)) as view,
    ):
        assert view is not None
        found = collect_view(view, owner=JOB.uid, entry_of=lambda path: path, skip=(), stage=Stage(fd), limits=limits)
    assert len(found.entries) == NEW


def _timed(act: Callable[[], object]) -> float:
    started = time.perf_counter()
    act()
    return time.perf_counter() - started


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"
