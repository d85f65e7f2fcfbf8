"""The disk of warmstart's state is full, on real Slurm: jobs get what they ask for, or are told, and it is recorded.

n4's state is a small tmpfs that the test fills, with bytes or with files. With a reserve all goes on; without one the
view lies in memory. That no node is drained and that no job leaves anything behind is checked by `site` itself.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lib import mounts
from tests.lib.accounts import ALICE
from tests.lib.cluster import JobResult
from tests.lib.site import RULES, Site
from warmstart.host import reserve
from warmstart.paths import SPARE

pytestmark = pytest.mark.threat(12)

NODE = "n4"
SHOW = '#!/bin/sh\necho "image=$WARMSTART_IMAGE cache=$WARMSTART_CACHE"\n'


@pytest.fixture
def state(site: Site) -> Iterator[Path]:
    """Return n4's state on a disk of its own, with all that a first hook makes there."""
    path, away = site.var / NODE, site.var / "away"
    path.mkdir(exist_ok=True)
    path.rename(away)
    with mounts.tmpfs(path, size="8m", inodes=700):
        assert run(site).state == "COMPLETED"
        yield path
        site.cluster.wait_idle()
        drain(path)
        maintain(site)
    path.rmdir()
    away.rename(path)
    shutil.rmtree(f"{SPARE}{site.cluster.base}", ignore_errors=True)


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


def use_up(state: Path) -> None:
    """Use up the reserve, as many jobs do."""
    for path in (state / "reserve").iterdir():
        path.rename(path.with_name(f"x{path.name}"))


def run(site: Site, image: str = "", script: str = SHOW) -> JobResult:
    """Run a job on the node, which may want an image."""
    options = [f"--comment=warmstart: image={image}"] if image else []
    return site.finish(site.cluster.submit(script, ALICE, f"--nodelist={NODE}", *options))


def said(job: JobResult) -> list[str]:
    """Return warmstart's lines in the job's output."""
    return [line for line in job.output.splitlines() if line.startswith("warmstart: ")]


FULL = pytest.mark.parametrize("fill", [fill_bytes, fill_inodes])


@FULL
def test_a_job_gets_its_image_on_a_full_disk_and_its_harvest_waits(
    site: Site, state: Path, fresh_image: Callable[[], str], fill: Callable[[Path], None]
) -> None:
    """Run and view lie in the reserve; the whole story is told. Maintenance publishes the cache later."""
    image = fresh_image()
    first = site.finish(site.cluster.submit(SHOW, ALICE, "--nodelist=n1", f"--comment=warmstart: image={image}"))
    assert first.state == "COMPLETED"  # the store has it
    fill(state)
    job = run(site, image, f"{SHOW}{site.cluster.python} {site.jobs}/copy_job.py\n")
    assert (job.state, said(job)) == ("COMPLETED", [])
    assert f"image={site.store}" in job.output
    assert [found["how"] for found in site.images(job.job_id)] == ["reused"]
    assert [event["outcome"] for event in site.events(job.job_id, "hook.finished")] == ["ok", "ok"]
    assert any("maintenance harvests it" in remark for remark in site.remarks(job.job_id))
    assert sum(event["entries"] for event in site.harvested(job.job_id)) == 0
    drain(state)
    maintain(site)
    assert sum(event["entries"] for event in site.harvested(job.job_id)) > 0


@FULL
def test_a_job_without_its_image_fails_and_one_without_its_cache_is_told(
    site: Site, state: Path, fresh_image: Callable[[], str], fill: Callable[[Path], None]
) -> None:
    """The view lies below /run."""
    use_up(state)
    fill(state)
    image = run(site, fresh_image())
    assert (image.state, image.exit_code) == ("FAILED", 1)
    assert f"no space for warmstart's state {state}" in said(image)[0]
    assert len(said(image)) == 2  # the reason, and the hint
    assert "cache=" not in image.output
    plain = run(site)
    site.write_policy(f"{RULES}on_error: {{image: run-without}}\n")
    for job in (plain, run(site, fresh_image())):
        assert (job.state, "image= cache=\n" in job.output) == ("COMPLETED", True), job
        assert said(job)[0].endswith("the job runs without warmstart")
    assert os.listdir(f"{SPARE}{state}/view") == []
    assert "no space for warmstart's state" in site.command("explain", str(image.job_id)).stdout
    drain(state)
    for path in (state / "reserve").glob("x*"):
        path.rmdir() if path.is_dir() else path.unlink()
    maintain(site)
    assert reserve.missing(f"{state}/reserve") == 0
