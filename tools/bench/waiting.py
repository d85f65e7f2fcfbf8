"""N jobs that wait for one image: from its publication to the release of the last one."""

from __future__ import annotations

import fcntl
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO

from tests.lib.bench_site import DIGEST, IMAGE, KIND, PLAIN, BenchSite, Command
from tools.bench.clock import in_turns, launcher
from tools.bench.figures import Figure, Series
from warmstart.images.reference import parse
from warmstart.images.store import layout

SETTLED_S = 2.0  # by then all of them have started and wait


def measured(site: BenchSite, counts: Sequence[int], rounds: int) -> Iterator[Figure]:
    """Time from the image's publication to the last waiter's release."""
    site.write_policy(PLAIN)
    for count in counts:
        measures = {"ours": partial(prologs, site, count), "launchers": partial(launchers, site, count)}
        found = in_turns(measures, rounds)
        peer = Series("flock + unsquashfs -l", found["launchers"], goal=0.1 if count >= 64 else None)
        yield Figure("waiting", f"{count} waiters", Series("warmstart", found["ours"]), (peer,))


def launchers(site: BenchSite, count: int) -> float:
    """Return the milliseconds that launchers take which list the image one after another under its lock."""
    with open(f"{site.image}.lock", "w", encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with _running([launcher(site.image)] * count) as waiters:
            time.sleep(SETTLED_S)
            started = time.perf_counter()
            fcntl.flock(lock, fcntl.LOCK_UN)
            return _last_released(waiters, started)


def prologs(site: BenchSite, count: int) -> float:
    """Return the milliseconds that as many prologs take whose image somebody else has just imported."""
    store = site.base / "store" / "images"
    image = store / f"{layout.image_name(DIGEST, KIND)}{layout.IMAGE}"
    image.unlink()
    jobs = range(1000, 1000 + count)
    with _importing(site, store) as lock, _running([site.hook("prolog", job) for job in jobs]) as waiters:
        time.sleep(SETTLED_S + count * 0.1)
        if any(waiter.poll() is not None for waiter in waiters):
            raise RuntimeError("a prolog did not wait for the image")
        site.publish(DIGEST)
        started = time.perf_counter()
        fcntl.flock(lock, fcntl.LOCK_UN)
        taken = _last_released(waiters, started)
    for job in jobs:
        site.hook("epilog", job).run()
    return taken


@contextmanager
def _running(commands: Sequence[Command]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Start all commands for a `with`; none outlives it."""
    waiters = [subprocess.Popen(command.argv, env=dict(command.env)) for command in commands]
    try:
        yield waiters
    finally:
        for waiter in waiters:
            waiter.kill()
            waiter.wait()


@contextmanager
def _importing(site: BenchSite, store: Path) -> Iterator[IO[str]]:
    """Hold the import's lock, as its producer does."""
    key = layout.key_of(parse(IMAGE).canonical())
    folder = store / "locks"
    folder.mkdir(mode=0o700, exist_ok=True)
    name = folder / f"{key}.{KIND}.lock"
    name.touch(mode=0o600)
    for path in (folder, name):
        os.chown(path, site.owner.uid, site.owner.gid)
    with open(name, encoding="ascii") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock


def _last_released(waiters: list[subprocess.Popen[bytes]], started: float) -> float:
    for waiter in waiters:
        if waiter.wait() != 0:
            raise RuntimeError(f"{waiter.args!r} failed")
    return (time.perf_counter() - started) * 1000
