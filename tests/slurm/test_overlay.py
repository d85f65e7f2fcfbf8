"""Overlays on real Slurm: warm jobs see one, and its mounts are gone after the job, however it ends."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from tests.lib.accounts import ALICE
from tests.lib.processes import wait_until
from tests.lib.site import Site, result


def backed(site: Site) -> set[str]:
    """Return the files of this site that loop devices show."""
    found = set()
    for file in Path("/sys/block").glob("loop*/loop/backing_file"):
        with suppress(OSError):  # freed just now
            found.add(file.read_text().strip())
    return {path for path in found if path.startswith(str(site.cluster.base))}


def layers(site: Site) -> set[str]:
    """Return the files that loop devices should show: the nodes' mounted layers."""
    return {str(path.parents[1] / "bundles" / f"{path.name}.sqsh") for path in site.var.glob("*/layers/*")}


@pytest.fixture(scope="module")
def compiled(installed: Site) -> None:
    """Run a job that fills a cache, and wait for its harvest."""
    installed.write_policy()
    installed.finish(installed.compile_job("copy", ALICE, "n1"))


@pytest.fixture
def warm(compiled: None, site: Site) -> Site:
    """Return the session's site with something in the store to seed these tests' jobs with."""
    return site


def running(site: Site, body: str) -> tuple[int, Path]:
    """Start a seeded job on n2. Return its id, and its cache directory as it sees that."""
    job_id = site.cluster.submit(f'#!/bin/sh\necho "at $NUMBA_CACHE_DIR"\n{body}', ALICE, "--nodelist=n2")
    wait_until("the job", lambda: "at /" in site.cluster.job(job_id).output, 60)
    return job_id, Path(site.cluster.job(job_id).output.partition("at ")[2].splitlines()[0])


def test_what_a_seeded_job_adds_comes_back(warm: Site) -> None:
    """It sees an overlay and compiles another program: only that is harvested. The next job gets both."""
    site = warm
    script = f"#!/bin/sh\nfor job in copy numba; do {site.cluster.python} {site.jobs}/${{job}}_job.py; done\n"
    counts = []
    for node in ("n2", "n3"):
        job_id = site.cluster.submit(script, ALICE, f"--nodelist={node}", "--cpus-per-task=2")
        ended = site.finish(job_id)
        (seeded,) = site.seeded(job_id)
        (brought,) = [event for event in site.harvested(job_id) if event["profile"] == "numba"]
        assert (seeded["way"], seeded["mapped"]) == ("overlay", True)
        counts.append((seeded["entries"], brought["entries"]))
    (first, added), (second, nothing) = counts
    assert added > 0
    assert (second, nothing) == (first + added, 0)
    assert result(ended.output)["cache_misses"] == 0
    assert site.mounted() == []
    assert backed(site) == layers(site)


def test_a_cancelled_job_with_open_files(warm: Site) -> None:
    """It is killed while it writes; slurmd has been killed before. The mounts belong to the node, and go."""
    site = warm
    body = 'exec 9>"$NUMBA_CACHE_DIR/open"\ncd "$NUMBA_CACHE_DIR"\nwhile :; do echo x >&9; done\n'
    job_id, directory = running(site, body)
    site.cluster.kill_slurmd("n2")
    site.cluster.start_slurmd("n2")
    assert str(site.on_host("n2", directory)) in site.mounted()
    site.cluster.cancel(job_id)
    site.finish(job_id)
    assert site.mounted() == []
    assert backed(site) == layers(site)


@pytest.mark.threat(13)
def test_a_process_that_escapes_its_job(warm: Site) -> None:
    """It writes to the cache: no harvest, the mounts go, no drain, and the audit has the reason."""
    site = warm
    held = site.cluster.account(ALICE).home / "held"
    escape = f'exec 9>"$NUMBA_CACHE_DIR/held"; echo $$ >{held}; exec sleep 600'
    wait = f"while [ ! -s {held} ]; do sleep 0.1; done\n"
    job_id, directory = running(site, f"(setsid sh -c '{escape}' >/dev/null 2>&1 </dev/null &)\n{wait}")
    site.finish(job_id)
    try:
        codes = [event["code"] for event in site.failures(job_id)]
        assert codes == ["cache-in-use", "cache-in-use"]
        assert site.mounted() == []
        assert not site.on_host("n2", directory).exists()
    finally:
        os.kill(int(held.read_text()), signal.SIGKILL)
    wait_until("the loop device", lambda: backed(site) == layers(site), 20)
