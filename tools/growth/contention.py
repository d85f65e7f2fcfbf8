"""Ever more prologs, of eight nodes, that want one cold image at the same moment."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from tests.cluster import installation, processes
from tests.cluster.registry import Registry, build_image, layers
from tests.support.bench_site import BenchSite, bench_site
from tests.support.worker_calls import noted_calls
from warmstart.entry import prolog
from warmstart.images.imports import requests, waiting
from warmstart.images.store import eviction, published  # loaded before all fork
from warmstart.paths import Installation
from warmstart.policy.current import current_policy

POLICY = """\
version: 1
paths: {{workspace: {base}/workspace, store: {base}/store, audit: {base}/audit/audit.jsonl}}
images: {{registries: ["{registry}"], insecure: ["{registry}"]}}
rules:
  - name: everyone
    images: ["docker://{registry}/{image}"]
"""
LOADED = (eviction, published, requests, waiting)
NOISE = 16 << 20  # bytes of the image: most prologs come while it is imported
NODES = 8


class Point(NamedTuple):
    """What one cold image took that so many processes wanted."""

    processes: int
    imports: int  # downloads of its layer that the registry saw
    calls_mean: float  # operations on the store of one waiter, on average
    calls_most: int
    spread_s: float  # from the first released to the last
    failed: int


def contention(sizes: Sequence[int]) -> Iterator[Point]:
    """Measure each number with a new image."""
    with bench_site(1) as site:
        (site.base / "log").mkdir()
        with Registry(site.base) as registry:
            for size in sizes:
                built = build_image(site.base / f"image{size}", {"/noise": os.urandom(NOISE).hex()})
                image = f"team/cold{size}:1"
                registry.push(built, "latest", image)
                text = POLICY.format(base=site.base, registry=registry.url, image=image)
                installation.write_policy(site.prefix, text)
                current_policy(Installation(str(site.prefix)), keep=True)  # else each process would compile the policy
                yield _flight(site, registry, image, size)


def _flight(site: BenchSite, registry: Registry, image: str, size: int) -> Point:
    read, go = os.pipe()
    children = [_child(site, size * 10_000 + number, f"c{number % NODES}", read, go) for number in range(size)]
    os.close(read)
    os.close(go)  # all start now
    rows = [_answer(pid, fd) for pid, fd in children]
    program = f"{site.prefix}/libexec/warmstart/background".encode()

    def is_idle() -> bool:
        return not any(program in processes.arguments(pid) for pid in processes.parents())

    processes.wait_until("the end of all imports", is_idle, 60)
    (layer,) = layers(f"{registry.url}/{image}")
    calls = [row["calls"] for row in rows]
    ends = [row["at"] for row in rows]
    return Point(
        size,
        registry.requests("GET", f"/blobs/{layer}"),
        sum(calls) / size,
        max(calls),
        max(ends) - min(ends),
        sum(not row["image"] for row in rows),
    )


def _child(site: BenchSite, job: int, node: str, start: int, others: int) -> tuple[int, int]:
    """Fork the prolog of one job on a node. It begins when nobody has the pipe open any more."""
    answer, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(write)
        return pid, answer
    try:
        os.close(others)
        os.read(start, 1)
        os.environ.clear()
        os.environ.update(site.job_env, SLURM_JOB_ID=str(job), SLURMD_NODENAME=node)
        row = _prolog(str(site.prefix), job, node)
        os.write(write, json.dumps(row).encode())
    finally:
        os._exit(0)


def _prolog(prefix: str, job: int, node: str) -> dict[str, Any]:
    asked = noted_calls()
    status = prolog.main(prefix)
    view = f"{prefix}/var/lib/warmstart/{node}/view/{job}/environment"
    return {"calls": len(asked), "at": time.time(), "image": status == 0 and os.path.exists(view)}


def _answer(pid: int, fd: int) -> dict[str, Any]:
    with open(fd, "rb") as pipe:
        row: dict[str, Any] = json.loads(pipe.read())
    os.waitpid(pid, 0)
    return row
