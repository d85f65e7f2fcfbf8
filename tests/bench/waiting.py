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

from tests.bench.bench_site import DIGEST, IMAGE, KIND, PLAIN, BenchSite
from tests.bench.clock import LAUNCHER, in_turns
from tests.bench.figures import Figure, Series
from warmstart.images import layout
from warmstart.images.reference import parse

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
        argv = ["/bin/bash", "-c", LAUNCHER, "-", str(site.image)]
        waiters = [subprocess.Popen(argv, env={"PATH": "/usr/bin:/bin"}) for _ in range(count)]
        time.sleep(SETTLED_S)
        started = time.perf_counter()
    return _last_released(waiters, started)


def prologs(site: BenchSite, count: int) -> float:
    """Return the milliseconds that as many prologs take whose image somebody else has just imported."""
    store = site.base / "store" / "images"
    image = store / f"{layout.image_name(DIGEST, KIND)}{layout.IMAGE}"
    image.unlink()
    with _importing(site, store) as lock:
        hook = site.hook("prolog")
        waiters = [
            subprocess.Popen(hook.argv, env={**hook.env, "SLURM_JOB_ID": str(1000 + number)}) for number in range(count)
        ]
        time.sleep(SETTLED_S + count * 0.1)
        if any(waiter.poll() is not None for waiter in waiters):
            raise RuntimeError("a prolog did not wait for the image")
        site.publish(DIGEST)
        started = time.perf_counter()
        fcntl.flock(lock, fcntl.LOCK_UN)
    taken = _last_released(waiters, started)
    for number in range(count):
        site.hook("epilog", 1000 + number).run()
    return taken


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
