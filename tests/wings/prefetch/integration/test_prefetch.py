"""Prefetch in a real cluster, where pending jobs are of more than one user."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from tests.cluster.accounts import ALICE, BOB
from tests.cluster.processes import wait_until
from tests.cluster.registry import Registry
from tests.cluster.site import Site

SHOW = '#!/bin/sh\nunsquashfs -s "$WARMSTART_IMAGE" > /dev/null && echo found\n'


def wanting(image: str) -> str:
    """Return sbatch's option that requests an image."""
    return f"--comment=warmstart: image={image}"


def outcomes(site: Site, image: str) -> list[str]:
    """Return the names of all events of the image's import, in their order."""
    names = ("image.import-started", "image.import-failed", "image.imported")
    found: list[dict[str, Any]] = [event for name in names for event in site.audit("--event", name)]
    return [event["event"] for event in sorted(found, key=lambda event: event["ts"]) if event["image"] == image]


@pytest.mark.threat(40)
def test_a_pending_job_finds_its_image(site: Site, registry: Registry, fresh_image: Callable[[], str]) -> None:
    """`warmstart prefetch` asks slurmctld once; beside the job wait those of a user who asks for a lot.

    One import is made, before the job starts, and the job waits for nothing. Jobs that are held, or that can never
    start, cause none.
    """
    image = fresh_image()
    job = site.cluster.submit(SHOW, ALICE, wanting(image), "--begin=now+1hour")
    held, cancelled = (
        site.cluster.submit(SHOW, BOB, wanting(f"{registry.url}/test/{name}:1"), "--hold") for name in ("held", "over")
    )
    stuck = site.cluster.submit(SHOW, BOB, wanting(f"{registry.url}/test/stuck:1"), f"--dependency=afterok:{cancelled}")
    site.cluster.cancel(cancelled)
    reason = ("squeue", "--noheader", "--format=%r", f"--jobs={stuck}")
    wait_until("slurmctld to see it", lambda: "NeverSatisfied" in site.cluster.admin(*reason), 90)
    hostile = [
        site.cluster.submit(SHOW, BOB, f"--comment={text}", "--begin=now+1hour")
        for text in (
            "warmstart: image=evil.example.com/a:1",
            'warmstart: image=a"}],\n"jobs": [',
            "warmstart: x=\udcff",
        )
    ]

    def prefetch() -> dict[str, Any]:
        done = site.command("prefetch", "--pending", "--json", env=site.cluster.environment)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    answer = prefetch()
    assert [(row["reference"], row["result"], row["job_id"]) for row in answer["images"]] == [(image, "requested", job)]
    assert answer["refused"] == len(hostile)
    site.wait_imports()
    name = image.partition("/")[2].partition(":")[0]
    fetched = registry.requests("GET", f"/{name}/blobs/")
    assert [row["result"] for row in prefetch()["images"]] == ["present"]
    site.cluster.admin("scontrol", "update", f"jobid={job}", "starttime=now")
    ended = site.finish(job)
    for other in (*hostile, held, stuck):
        site.cluster.cancel(other)
    assert ended.output == "found\n"
    assert len(site.events(job, "image.reused")) == 1
    assert outcomes(site, image) == ["image.import-started", "image.imported"]
    assert registry.requests("GET", f"/{name}/blobs/") == fetched > 0
