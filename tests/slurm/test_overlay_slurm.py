"""Overlays on real Slurm: warm jobs see one, and its mounts are gone after the job, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.lib import spank
from tests.lib.accounts import ALICE, BOB
from tests.lib.cluster import Cluster
from tests.lib.config import Namespace
from tests.lib.processes import wait_until
from tests.lib.site import Site, result

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

AT = 'echo "at $NUMBA_CACHE_DIR $$"\n'


@pytest.fixture(scope="module")
def contained(capable_host: None, install: Callable[[Path], None]) -> Iterator[Site]:
    """Yield a site whose jobs each have a mount namespace of their own, by job_container/tmpfs."""
    with Cluster(namespace=Namespace()) as cluster:
        yield Site(cluster, install=install)


def mounted(site: Site, table: str = "/proc/self/mountinfo") -> list[str]:
    """Return the mount points of jobs, as the processes see them whose table that is."""
    points = [line.split()[4] for line in Path(table).read_text().splitlines()]
    own = {f"{site.workspace}/{node}" for node in site.cluster.nodes}
    return [point for point in points if point.startswith(f"{site.workspace}/") and point not in own]


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
    """Yield the session's site with something in the store to seed these tests' jobs with."""
    return site


def running(site: Site, user: str, node: str, body: str = "exec sleep 600\n") -> tuple[int, Path, int]:
    """Start a seeded job. Return its id, its cache directory as it sees that, and its shell's pid."""
    job_id = site.cluster.submit(f"#!/bin/sh\n{AT}{body}", user, f"--nodelist={node}")
    wait_until("the job", lambda: "at /" in site.cluster.job(job_id).output, 60)
    line = site.cluster.job(job_id).output.partition("at ")[2].splitlines()[0]
    directory, _, pid = line.rpartition(" ")
    return job_id, Path(directory), int(pid)


def test_a_warm_job_sees_an_overlay_and_leaves_no_mount(warm: Site) -> None:
    """All hits and nothing new to harvest. Afterwards only the nodes' layers are mounted."""
    site = warm
    job_id = site.compile_job("copy", ALICE, "n2")
    ended = site.finish(job_id)
    assert result(ended.output)["cache_misses"] == 0
    (seeded,) = site.events(job_id, "cache.seeded")
    assert (seeded["way"], seeded["mapped"]) == ("overlay", True)
    assert site.events(job_id, "overlay.failed") == []
    (brought,) = [event for event in site.events(job_id, "cache.harvested") if event["profile"] == "numba"]
    assert (brought["entries"], brought["truncated"]) == (0, "")
    assert mounted(site) == []
    assert backed(site) == layers(site)


def test_what_a_seeded_job_adds_comes_back(warm: Site) -> None:
    """A warm job compiles another program: only that is harvested, and the next job gets both."""
    site = warm
    script = f"#!/bin/sh\nfor job in copy numba; do {site.cluster.python} {site.jobs}/${{job}}_job.py; done\n"
    counts = []
    for node in ("n2", "n3"):
        job_id = site.cluster.submit(script, ALICE, f"--nodelist={node}", "--cpus-per-task=2")
        site.finish(job_id)
        (seeded,) = site.events(job_id, "cache.seeded")
        (brought,) = [event for event in site.events(job_id, "cache.harvested") if event["profile"] == "numba"]
        counts.append((seeded["entries"], brought["entries"]))
    (first, added), (second, nothing) = counts
    assert added > 0
    assert (second, nothing) == (first + added, 0)


def test_a_cancelled_job_with_open_files(warm: Site) -> None:
    """It is killed while writing: its mounts go, and complete entries are harvested."""
    site = warm
    body = 'exec 9>"$NUMBA_CACHE_DIR/open"\ncd "$NUMBA_CACHE_DIR"\nwhile :; do echo x >&9; done\n'
    job_id, directory, _ = running(site, ALICE, "n2", body)
    assert str(site.on_host("n2", directory)) in mounted(site)
    site.cluster.cancel(job_id)
    site.finish(job_id)
    assert mounted(site) == []
    assert backed(site) == layers(site)


@pytest.mark.threat(13)
def test_a_process_that_escapes_its_job(warm: Site) -> None:
    """It writes to the cache: no harvest, the mounts go, no drain, and the audit has the reason."""
    site = warm
    held = site.cluster.account(ALICE).home / "held"
    escape = f'exec 9>"$NUMBA_CACHE_DIR/held"; echo $$ >{held}; exec sleep 600'
    job_id, directory, _ = running(
        site, ALICE, "n2", f"(setsid sh -c '{escape}' >/dev/null 2>&1 </dev/null &)\nsleep 2\n"
    )
    site.finish(job_id)
    try:
        codes = [event["error"]["code"] for event in site.events(job_id, "step.failed")]
        assert codes == ["cache-busy", "cache-in-use"]
        assert mounted(site) == []
        assert not site.on_host("n2", directory).exists()
    finally:
        os.kill(int(held.read_text()), signal.SIGKILL)
    wait_until("the loop device", lambda: backed(site) == layers(site), 20)


def test_slurmd_is_killed_between_prolog_and_epilog(warm: Site) -> None:
    """The mounts belong to the node: the job continues, and the next slurmd's epilog removes them."""
    site = warm
    job_id, directory, _ = running(site, ALICE, "n3", "sleep 5\nls $NUMBA_CACHE_DIR/*\n")
    site.cluster.kill_slurmd("n3")
    site.cluster.start_slurmd("n3")
    assert str(site.on_host("n3", directory)) in mounted(site)
    ended = site.finish(job_id)
    assert ".nbi" in ended.output
    assert mounted(site) == []
    assert backed(site) == layers(site)


@pytest.mark.parametrize("moment", ["cache", ".seed"])
def test_a_prolog_killed_while_it_mounts(warm: Site, moment: str) -> None:
    """The next epilog removes whatever was mounted."""
    site = warm
    variables = site.variables(910100 + len(moment), node="n2")
    with site.start_hook("prolog", variables) as prolog:
        end = time.monotonic() + 20
        while not any((site.workspace / "n2").glob(f"9101*/{moment}")) and time.monotonic() < end:
            pass  # a pause would miss it
        prolog.kill()
        prolog.communicate()
    assert site.run_hook("epilog", variables).returncode == 0
    assert mounted(site) == []
    assert backed(site) == layers(site)


def test_after_a_reboot_nothing_is_mounted(warm: Site) -> None:
    """The record is of another boot: the epilog removes the directories and harvests nothing."""
    site = warm
    variables = site.variables(910200, node="n2")
    assert site.run_hook("prolog", variables).returncode == 0
    for point in reversed(mounted(site)):
        subprocess.run(["/usr/bin/umount", point], check=True)
    for layer in (site.var / "n2" / "layers").iterdir():
        subprocess.run(["/usr/bin/umount", str(layer)], check=True)
    assert site.run_hook("epilog", variables).returncode == 0
    assert site.events(910200, "step.failed") == []
    job_id = site.compile_job("copy", ALICE, "n2")
    assert result(site.finish(job_id).output)["cache_misses"] == 0


def test_at_the_constant_path_it_is_the_same_overlay(warm: Site) -> None:
    """The SPANK plugin binds the cache there with the mounts in it: all hits."""
    site = warm
    spank.need()
    site.write_policy(constant="spank")
    with spank.loaded(site):
        show = 'stat -f -c "%T $NUMBA_CACHE_DIR" "$NUMBA_CACHE_DIR"'
        script = f"#!/bin/sh\n{show}\n{site.cluster.python} {site.jobs}/copy_job.py\n"
        job_id = site.cluster.submit(script, ALICE, "--nodelist=n4", "--cpus-per-task=2")
        output = site.finish(job_id).output
    assert f"overlayfs {site.constant}/numba" in output
    assert result(output)["cache_misses"] == 0
    assert mounted(site) == []


@pytest.mark.threat(13)
def test_another_jobs_namespace_holds_no_mount_of_a_job_that_ended(contained: Site) -> None:
    """Under job_container jobs start with copies of all mounts; an ended job's go there, too."""
    site = contained
    site.finish(site.compile_job("copy", ALICE, "n1"))
    first, directory, pid = running(site, ALICE, "n1")
    assert str(directory) in mounted(site, f"/proc/{pid}/mountinfo")
    second, _, other = running(site, BOB, "n1")
    assert str(directory) in mounted(site, f"/proc/{other}/mountinfo")
    site.cluster.cancel(first)
    wait_until("the epilog", lambda: not site.on_host("n1", directory.parents[1]).exists(), 60)
    assert str(directory.parents[1]) not in Path(f"/proc/{other}/mountinfo").read_text()
    assert mounted(site) == []
    site.cluster.cancel(second)
    site.finish(second)
    assert backed(site) == layers(site)
