"""Work in a job's overlay, beside the same work in a plain directory.

It lies above a squashfs. Each of the two is measured alone as well: that is what any overlay of this kind
costs. The job does the work, each time in a new process that has done it once before, so that all is in memory.
Its CPU time counts, the kernel's included: nothing waits for the disk, and other work on the machine matters less.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.lib.overlay_place import JOB, Copy, Node, Run, a_node
from tests.lib.teardown import unmount
from tools.bench.clock import in_turns
from tools.bench.figures import Figure, Series
from tools.bench.seeding import a_cache
from warmstart.host import linux
from warmstart.host.deadline import after
from warmstart.seed import node_cache

SIZE = 1000  # bytes of a file that is written
LARGE = 64 << 20
READ, WRITE = 1.2, 1.1  # goals
OPTIONS = "redirect_dir=nofollow,metacopy=off,index=off,volatile"  # as in seed.overlay
Work = Callable[[Path], None]
Place = Callable[[Work], float]  # returns how long work takes there


def measured(files: int, written: int, rounds: int) -> Iterator[Figure]:
    """Read so many files, write so many, and write and read a large one."""
    with a_node() as node:
        plain = node.base / "plain"
        copy = a_cache(node, files, plain)
        run = node.run("1.bbbbbbbb")
        run.show(copy)
        for path in (plain, *plain.rglob("*")):
            os.chown(path, JOB.uid, JOB.gid)
        with _overlay_alone(node, plain) as overlay, _squashfs_alone(node, copy) as squashfs:
            places: dict[str, Place] = {
                "warmstart's overlay": partial(_as_job, run, run.cache),
                "plain directory": partial(_as_job, run, plain),
                "an overlay of a plain directory": partial(_as_job, run, overlay),
            }
            readable = {**places, "the squashfs without an overlay, as root": lambda work: _twice(work, squashfs)}
            yield _compared(f"read {files:,} files", _read, readable, rounds, READ)
            yield _compared(f"list {files:,} files", _list, readable, rounds, READ)
            yield _compared(f"write {written:,} files", partial(_write, written), places, rounds, WRITE)
            yield _compared("write and read 64 MiB", _write_large, places, rounds, WRITE)


def _compared(what: str, work: Work, places: Mapping[str, Place], rounds: int, goal: float) -> Figure:
    found = in_turns({name: partial(place, work) for name, place in places.items()}, rounds)
    ours, plain, *others = (Series(name, values) for name, values in found.items())
    return Figure("overlay", what, ours, [plain._replace(goal=goal), *others])


def _as_job(run: Run, place: Path, work: Work) -> float:
    taken: float = run.as_job(partial(_twice, work, place))
    return taken


def _twice(work: Work, place: Path) -> float:
    work(place)
    started = time.process_time()
    work(place)
    return (time.process_time() - started) * 1000


@contextmanager
def _squashfs_alone(node: Node, copy: Copy) -> Iterator[Path]:
    os.close(node_cache.mounted(node.layers, [copy.path], after(10))[0])
    yield Path(node.layers) / copy.row.sha256


@contextmanager
def _overlay_alone(node: Node, plain: Path) -> Iterator[Path]:
    top = node.base / "alone"
    for name in ("", "upper", "work", "merged"):
        (top / name).mkdir()
    os.chown(top / "upper", JOB.uid, JOB.gid)
    options = f"lowerdir={plain},upperdir={top}/upper,workdir={top}/work,{OPTIONS}"
    linux.mount("bench", f"{top}/merged", "overlay", linux.RESTRICTED, options)
    try:
        yield top / "merged"
    finally:
        unmount(f"{top}/merged")


def _read(top: Path) -> None:
    for directory, _, names in os.walk(top):
        for name in names:
            with open(os.path.join(directory, name), "rb", buffering=0) as file:
                file.read()


def _list(top: Path) -> None:
    for _ in os.walk(top):
        pass


def _write(files: int, top: Path) -> None:
    target = tempfile.mkdtemp(dir=top)
    data = b"x" * SIZE
    for number in range(files):
        fd = os.open(f"{target}/{number}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        os.write(fd, data)
        os.close(fd)
    shutil.rmtree(target)


def _write_large(top: Path) -> None:
    path = top / "large"
    block = bytes(1 << 20)
    with open(path, "wb", buffering=0) as file:
        file.writelines(block for _ in range(LARGE >> 20))
    with open(path, "rb", buffering=0) as file:
        while file.read(1 << 20):
            pass
    path.unlink()
