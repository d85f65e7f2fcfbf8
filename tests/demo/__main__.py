"""Run the demo; exits 0 when everything that it claims was seen to happen."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from tests.cluster import host
from tests.cluster.cluster import Cluster, JobResult
from tests.cluster.registry import Registry, build_image
from tests.cluster.site import Site, result

IMAGE_JOB = '#!/bin/sh\necho "image $WARMSTART_IMAGE"\n'
SECONDS = 240


class Row(NamedTuple):
    """One job of the table."""

    job: str
    user: str
    node: str
    image: str
    seeded: str
    harvested: str
    compiled: str


def main() -> int:
    """Run all of it on a fresh cluster."""
    console = Console()
    if wanting := host.missing():
        console.print(f"the demo starts a real cluster and needs: {', '.join(wanting)}", highlight=False)
        return 1
    started = time.monotonic()
    with console.status("") as status:

        def say(what: str) -> None:
            status.update(what)
            if not console.is_terminal:  # a log gets a line, a terminal a spinner
                console.print(what, highlight=False)

        rows, claims = run(say)
    show(console, rows)
    for claim, seen in claims.items():
        console.print(f"[{'green' if seen else 'red'}]{'yes' if seen else 'NO '}[/] {claim}", highlight=False)
    console.print(f"{time.monotonic() - started:.0f} s; nothing is left running", highlight=False)
    return 0 if all(claims.values()) else 1


def run(say: Callable[[str], None]) -> tuple[list[Row], dict[str, bool]]:
    """Run the jobs; return the table, and what the demo claims with whether it was so."""
    say("starting munge, slurmctld and four slurmds")
    with Cluster() as cluster:
        say("starting a registry and pushing an image")
        with Registry(cluster.base) as registry:
            layout = build_image(cluster.base / "image", {"/etc/motd": "hello\n"})
            registry.push(layout, "latest", "demo/app:1")
            say("installing warmstart")
            site = Site(cluster, registry.url)
            say("four jobs of two users want the same image at once")
            rows = share_image(site)
            for tool in tools():
                for node, state in (("n1", "cold"), ("n2", "warm")):
                    say(f"{tool}: a compile job on {node}, {state}")
                    rows.append(compile_job(site, tool, node))
            say("reading the audit log")
            return rows, {**check(site, rows), "no node drained": not cluster.drained()}


def tools() -> list[str]:
    """Return the compilers that are installed here."""
    return ["numba", *(["inductor"] if importlib.util.find_spec("torch") else [])]


def share_image(site: Site) -> list[Row]:
    """Submit four jobs of two users at once, one on each node."""
    comment = f"--comment=warmstart: image={site.registry}/demo/app:1"
    users = ("ws-alice", "ws-bob", "ws-alice", "ws-bob")
    jobs = [
        (user, site.cluster.submit(IMAGE_JOB, user, comment, f"--nodelist={node}"))
        for user, node in zip(users, site.cluster.nodes, strict=True)
    ]
    rows = []
    for user, job_id in jobs:
        ended = finished(site, job_id)
        path = ended.output.split()[-1]
        if not Path(path).is_file():
            raise RuntimeError(f"job {job_id} found no image: {ended.output}")
        rows.append(row(site, ended, "image", user, compiled="-"))
    return rows


def compile_job(site: Site, tool: str, node: str) -> Row:
    """Run the tool's sample job on one node."""
    ended = finished(site, site.compile_job(tool, "ws-alice", node))
    printed = result(ended.output)
    compiled = f"{printed['seconds']:.2f} s, {printed['cache_hits']} hits"
    return row(site, ended, tool, "ws-alice", compiled)


def finished(site: Site, job_id: int) -> JobResult:
    """Wait for a job; a failed one ends the demo with its output."""
    ended = site.cluster.wait(job_id, SECONDS)
    site.cluster.wait_idle()
    if ended.state != "COMPLETED":
        raise RuntimeError(f"job {job_id} is {ended.state}: {ended.output}")
    return ended


def row(site: Site, job: JobResult, name: str, user: str, compiled: str) -> Row:
    """Read in the audit log what warmstart did for a job."""
    events = site.audit("--job", str(job.job_id))
    image = "-"
    for event in events:
        if event["event"] in {"image.imported", "image.waited", "image.reused"}:
            image = f"{event['event'].partition('.')[2]} {event['duration_ms'] / 1000:.2f} s"
    seeded = sum(event["entries"] for event in events if event["event"] == "cache.seeded")
    harvested = sum(event["entries"] for event in events if event["event"] == "cache.harvested")
    return Row(f"{job.job_id} {name}", user, job.nodes[0], image, str(seeded), str(harvested), compiled)


def check(site: Site, rows: list[Row]) -> dict[str, bool]:
    """Return what the demo claims, and whether it was so."""
    claims = {
        "one import for four jobs": len(site.audit("--event", "image.imported")) == 1,
    }
    for tool in tools():
        cold, warm = (row for row in rows if row.job.endswith(tool))
        claims[f"{tool}: the second node's job was seeded with what the first one compiled"] = (
            int(cold.harvested) > 0 and int(warm.seeded) > 0 and " 0 hits" not in warm.compiled
        )
    return claims


def show(console: Console, rows: list[Row]) -> None:
    """Print the table."""
    table = Table("job", "user", "node", "image", "seeded", "harvested", "compile time")
    for line in rows:
        table.add_row(*line)
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
