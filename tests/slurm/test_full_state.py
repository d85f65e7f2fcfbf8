"""A disk of warmstart's state is full, on real Slurm: jobs get what they ask for or run without, and it is recorded.

What lasts of n4, or its state of runs, is a small tmpfs that the test fills, with bytes or with files. That no node is
drained and that no job leaves anything behind is checked by `site` itself.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lib import mounts
from tests.lib.accounts import ALICE
from tests.lib.cluster import JobResult
from tests.lib.site import Site

pytestmark = pytest.mark.threat(12)

NODE = "n4"
SHOW = '#!/bin/sh\necho "image=$WARMSTART_IMAGE cache=$WARMSTART_CACHE"\n'


@contextmanager
def small(site: Site, path: Path) -> Iterator[Path]:
    """Have a directory of n4's on a disk of its own, with all that a first hook makes there."""
    away = path.with_name("away")
    path.mkdir(parents=True, exist_ok=True)
    path.rename(away)
    path.mkdir()
    with mounts.tmpfs(path, size="8m", inodes=700):
        assert run(site).state == "COMPLETED"
        yield path
        site.cluster.wait_idle()
        drain(path)
        maintain(site)
    path.rmdir()
    away.rename(path)


@pytest.fixture
def lasting(site: Site) -> Iterator[Path]:
    with small(site, site.var / NODE) as path:
        yield path


@pytest.fixture
def of_runs(site: Site) -> Iterator[Path]:
    with small(site, site.runtime(NODE)) as path:
        yield path


def maintain(site: Site) -> None:
    """Maintain the node."""
    done = site.command("maintain", "--node", NODE)
    assert done.returncode == 0, done.stderr


def fill_bytes(state: Path) -> None:
    """Leave no byte."""
    with open(state / "hog", "wb", buffering=0) as file:
        _until_full(lambda: file.write(bytes(4096)))


def fill_inodes(state: Path) -> None:
    """Leave no inode."""
    (state / "hogs").mkdir()
    names = map(str, range(10_000))
    _until_full(lambda: os.mknod(state / "hogs" / next(names)))


def _until_full(step: Callable[[], object]) -> None:
    try:
        while True:
            step()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


def drain(state: Path) -> None:
    """Free what was filled."""
    (state / "hog").unlink(missing_ok=True)
    shutil.rmtree(state / "hogs", ignore_errors=True)


def run(site: Site, image: str = "", script: str = SHOW) -> JobResult:
    """Run a job on the node, which may want an image."""
    options = [f"--comment=warmstart: image={image}"] if image else []
    return site.finish(site.cluster.submit(script, ALICE, f"--nodelist={NODE}", *options))


def said(job: JobResult) -> list[str]:
    """Return warmstart's lines in the job's output."""
    return [line for line in job.output.splitlines() if line.startswith("warmstart: ")]


FULL = pytest.mark.parametrize("fill", [fill_bytes, fill_inodes])


@FULL
def test_a_job_gets_a_new_image_on_a_full_disk_and_its_harvest_waits(
    site: Site, lasting: Path, fresh_image: Callable[[], str], fill: Callable[[Path], None]
) -> None:
    """The whole story is told. Maintenance publishes the cache later."""
    fill(lasting)
    job = run(site, fresh_image(), f"{SHOW}{site.cluster.python} {site.jobs}/copy_job.py\n")
    assert (job.state, said(job)) == ("COMPLETED", [])
    assert f"image={site.store}" in job.output
    assert [found["how"] for found in site.images(job.job_id)] == ["waited"]
    assert [event["outcome"] for event in site.events(job.job_id, "hook.finished")] == ["ok", "ok"]
    assert any("it is harvested in the background" in remark for remark in site.remarks(job.job_id))
    assert sum(event["entries"] for event in site.harvested(job.job_id)) == 0
    drain(lasting)
    maintain(site)
    assert sum(event["entries"] for event in site.harvested(job.job_id)) > 0


@FULL
def test_without_room_for_its_run_a_job_runs_without_warmstart(
    site: Site, of_runs: Path, fresh_image: Callable[[], str], fill: Callable[[Path], None]
) -> None:
    """Also one that must have its image. It has no view that could tell it: the log and syslog do."""
    fill(of_runs)
    for job in (run(site), run(site, fresh_image())):
        assert (job.state, job.output) == ("COMPLETED", "image= cache=\n")
        assert "failed" in [event["outcome"] for event in site.events(job.job_id, "hook.finished")]
        assert "no space for warmstart's state" in site.command("explain", str(job.job_id)).stdout
