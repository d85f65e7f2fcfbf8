"""Imports apart from jobs, in a real cluster: they outlive whoever asked, and nothing waits for them but by choice.

`site` checks after each test that no node is drained and that no job has left anything.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.lib.accounts import ALICE, BOB
from tests.lib.processes import wait_until
from tests.lib.registry import Registry, build_image
from tests.lib.site import RULES, Site
from tests.lib.slow_relay import slowed
from warmstart.images.imports import requests
from warmstart.paths import NodePaths

SHOW = '#!/bin/sh\nunsquashfs -s "$WARMSTART_IMAGE" > /dev/null && echo found\n'
BY_HAND = 7301


@pytest.fixture
def impatient(site: Site) -> Iterator[Site]:
    """Let jobs wait three seconds for an image."""
    policy = site.etc / "policy.yaml"
    text = policy.read_text()
    policy.write_text(text.replace("wait: 60s", "wait: 3s"))
    yield site
    site.write_policy(RULES)


def wanting(image: str) -> str:
    """Return sbatch's option that requests an image."""
    return f"--comment=warmstart: image={image}"


def importing(site: Site, node: str) -> list[Path]:
    """Return the scratch directories of imports on a node."""
    return list((site.workspace / node).glob("import.*"))


def outcomes(site: Site, image: str) -> list[str]:
    """Return the names of all events of the image's import, in their order."""
    names = ("image.import-failed", "image.imported")
    found: list[dict[str, Any]] = [event for name in names for event in site.audit("--event", name)]
    return [event["event"] for event in sorted(found, key=lambda event: event["ts"]) if event["image"] == image]


def test_an_import_outlives_jobs_and_slurmd(
    impatient: Site, registry: Registry, fresh_image: Callable[[], str]
) -> None:
    """The first jobs fail with a true sentence, while one import goes on; the next job starts at once.

    That they end shows that nothing waits for a descriptor of the import: the registry answers only afterwards.
    """
    site, image = impatient, fresh_image()
    with registry.silent():
        jobs = [site.cluster.submit(SHOW, user, wanting(image), f"--nodelist={node}")
                for user, node in ((ALICE, "n1"), (BOB, "n2"))]  # fmt: skip
        ended = [site.cluster.wait(job) for job in jobs]
        site.cluster.wait_idle()
        assert [job.state for job in ended] == ["FAILED"] * 2
        wait_until("the end of the one that was not elected", lambda: len(site.imports()) == 1, 20)
        (pid,) = site.imports()
        for job in ended:
            assert f"image {image} is still missing after" in job.output
            assert f"imported by pid {pid} on n" in job.output
        for node in ("n1", "n2"):
            site.cluster.kill_slurmd(node)
            site.cluster.start_slurmd(node)
        assert site.imports() == [pid]
    site.wait_imports()
    assert outcomes(site, image) == ["image.imported"]
    later = site.finish(site.cluster.submit(SHOW, BOB, wanting(image), "--nodelist=n3"))
    assert later.output == "found\n"
    assert len(site.events(later.job_id, "image.reused")) == 1


def big_image(site: Site, registry: Registry, size: int) -> str:
    """Push an image with so many bytes that do not compress; return its name in the registry."""
    directory = site.cluster.base / "images" / f"big{size}"
    layout = build_image(directory, {"/etc/big": f"{size}\n"})
    with (directory / "big").open("wb") as file:
        for _ in range(size >> 20):
            file.write(os.urandom(1 << 20))
    argv = ["umoci", "insert", "--image", f"{layout}:latest", str(directory / "big"), "/big"]
    subprocess.run(argv, check=True, capture_output=True, timeout=300)
    registry.push(layout, "latest", f"test/big{size}:1")
    shutil.rmtree(directory)
    return f"test/big{size}:1"


@pytest.mark.parametrize(
    ("size", "rate"), [(32 << 20, 1_500_000), pytest.param(2 << 30, 10_000_000, marks=pytest.mark.sweep)]
)
def test_an_image_that_takes_longer_than_any_job_waits(site: Site, registry: Registry, size: int, rate: int) -> None:
    """The first jobs hear who imports it and how far that is; the layers are fetched once, and then it is there."""
    name = big_image(site, registry, size)
    with slowed(registry.url, rate) as slow:
        site.write_policy(registry=slow)
        policy = site.etc / "policy.yaml"
        policy.write_text(policy.read_text().replace("wait: 60s", "wait: 15s"))
        image = f"{slow}/{name}"
        jobs = [site.cluster.submit(SHOW, ALICE, wanting(image), f"--nodelist={node}") for node in ("n1", "n2")]
        for job in jobs:
            ended = site.cluster.wait(job)
            assert ended.state == "FAILED"
            assert re.search(r"; imported by pid \d+ on n[12] for job \d+ since \S+, now fetching it, \d", ended.output)
        site.wait_imports(600)
        later = site.finish(site.cluster.submit(SHOW, BOB, wanting(image), "--nodelist=n3"))
        assert later.output == "found\n"
        assert len(site.events(later.job_id, "image.reused")) == 1
        assert outcomes(site, image) == ["image.imported"]
    blobs = registry.requests("GET", f"/{name.partition(':')[0]}/blobs/")
    assert blobs == 3  # two layers and the configuration


@contextmanager
def prolog_flags(site: Site, flags: str) -> Iterator[None]:
    """Run the cluster with other PrologFlags."""
    conf = site.cluster.base / "etc" / "warmstart.conf"
    text = conf.read_text()
    for wanted in (re.sub(r"(?m)^PrologFlags=.*$", f"PrologFlags={flags}", text), text):
        conf.write_text(wanted)
        site.cluster.reread()
        if wanted != text:
            yield


def release_of_this_slurm() -> tuple[int, ...]:
    """Return year and month of the release."""
    program = shutil.which("slurmctld", path="/usr/sbin")
    version = subprocess.run([program, "-V"], capture_output=True, text=True, check=True).stdout if program else ""
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def flags_of_this_slurm() -> list[str]:
    """Return the PrologFlags to try: `RunInJob` came with 24.05."""
    more = ["Alloc,DeferBatch,Contain,RunInJob"] if release_of_this_slurm() >= (24, 5) else []
    return ["Alloc,DeferBatch,Contain", *more]


@pytest.mark.parametrize("flags", flags_of_this_slurm())
def test_an_import_outlives_a_job_that_contains_it(
    impatient: Site, registry: Registry, fresh_image: Callable[[], str], flags: str
) -> None:
    """With an extern step, and with prologs that run in it: neither holds the import, nor does the import hold it."""
    site, image = impatient, fresh_image()
    with prolog_flags(site, flags):
        with registry.silent():
            job = site.cluster.wait(site.cluster.submit(SHOW, ALICE, wanting(image), "--nodelist=n1"))
            site.cluster.wait_idle()
            assert job.state == "FAILED"
            (pid,) = site.imports()
            assert "slurm" not in Path(f"/proc/{pid}/cgroup").read_text()
        site.wait_imports()
        assert outcomes(site, image) == ["image.imported"]
        later = site.finish(site.cluster.submit(SHOW, BOB, wanting(image), "--nodelist=n1"))
        assert later.output == "found\n"


@pytest.fixture
def patient(site: Site) -> Iterator[Site]:
    """Let jobs wait for an image as long as by default, and count the questions to slurmctld of the hooks."""
    policy, programs = site.etc / "policy.yaml", site.cluster.base / "counted"
    programs.mkdir(exist_ok=True)
    for name in ("scontrol", "squeue"):
        program = programs / name
        program.write_text(f'#!/bin/sh\necho "$@" >>{programs}/calls\nexec {shutil.which(name)} "$@"\n')
        program.chmod(0o755)
    (programs / "calls").write_text("")
    text = policy.read_text().replace("wait: 60s", "wait: 4m")
    policy.write_text(text.replace("paths:\n", f"paths:\n  scontrol: {programs}/scontrol\n"))
    yield site
    site.write_policy(RULES)
    for mark in (site.store / "runs").glob("*/over.over"):  # maintenance would, a week later
        mark.unlink()


def questions(site: Site) -> list[str]:
    """Return the arguments of Slurm's commands that hooks have run."""
    return (site.cluster.base / "counted" / "calls").read_text().splitlines()


@pytest.mark.threat(44)
@pytest.mark.parametrize("flags", flags_of_this_slurm())
def test_a_job_that_is_cancelled_during_a_cold_import_frees_its_nodes(
    patient: Site, registry: Registry, fresh_image: Callable[[], str], flags: str
) -> None:
    """Its head node asks slurmctld, and the other one hears of it through the store. The import goes on."""
    site, image = patient, fresh_image()
    with prolog_flags(site, flags):
        with registry.silent():
            job = site.cluster.submit(SHOW, ALICE, wanting(image), "--nodelist=n[1-2]", "--nodes=2")
            wait_until("an import", lambda: any(importing(site, node) for node in ("n1", "n2")), 60)
            site.cluster.cancel(job)
            site.cluster.wait_idle(60)
            assert site.cluster.job(job).state == "CANCELLED"
            assert len(site.imports()) == 1
        site.wait_imports()
        (node, other) = site.events(job, "job.refused")
        assert {node["node"], other["node"]} == {"n1", "n2"}
        assert node["error"]["code"] == other["error"]["code"] == "job-over"
        assert 0 < len(questions(site)) <= 4
        assert all(f"--jobs={job}" in question for question in questions(site))
        later = site.finish(site.cluster.submit(SHOW, BOB, wanting(image), "--nodelist=n[1-2]", "--nodes=2"))
        assert later.output == "found\n"
        assert not any(f"--jobs={later.job_id}" in question for question in questions(site))


@pytest.mark.sweep
@pytest.mark.parametrize("flags", flags_of_this_slurm())
def test_slurmd_tells_a_prolog_nothing_of_its_jobs_end(
    patient: Site, registry: Registry, fresh_image: Callable[[], str], flags: str
) -> None:
    """Where slurmctld gives no answer the prolog waits on, although slurmd knows that the job is over."""
    site, image = patient, fresh_image()
    squeue = site.cluster.base / "counted" / "squeue"
    squeue.write_text(squeue.read_text().replace("exec ", "exit 1 "))
    with prolog_flags(site, flags):
        with registry.silent():
            job = site.cluster.submit(SHOW, ALICE, wanting(image), "--nodelist=n1")
            wait_until("an import", lambda: bool(importing(site, "n1")), 60)
            site.cluster.cancel(job)
            wait_until("two questions", lambda: len(questions(site)) >= 2, 90)
            assert site.cluster.admin("squeue", "--noheader", f"--jobs={job}", "--format=%T").strip() == "COMPLETING"
            assert site.events(job, "job.refused") == []
        site.cluster.wait_idle(60)
        assert site.events(job, "image.waited")[0]["image"] == image


def test_an_import_that_is_killed_is_made_again(site: Site, registry: Registry, fresh_image: Callable[[], str]) -> None:
    """The hook that waits starts it; the job gets its image."""
    image = fresh_image()
    with registry.silent():
        job = site.cluster.submit(SHOW, ALICE, wanting(image), "--nodelist=n1")
        wait_until("an import", lambda: bool(importing(site, "n1")), 60)
        for pid in site.imports():
            os.kill(pid, signal.SIGKILL)
    ended = site.finish(job)
    assert ended.output == "found\n"
    assert outcomes(site, image) == ["image.imported"]
    assert importing(site, "n1") == []


def test_a_prolog_that_slurm_kills_leaves_its_import(
    site: Site, registry: Registry, fresh_image: Callable[[], str]
) -> None:
    """As at PrologEpilogTimeout: its whole process group is killed. Its epilog leaves the import alone, too."""
    image = fresh_image()
    variables = site.variables(BY_HAND, SLURM_JOB_COMMENT=f"warmstart: image={image}")
    with registry.silent():
        with site.start_hook("prolog", variables, session=True) as prolog:
            wait_until("an import", lambda: bool(importing(site, "n1")), 60)
            os.killpg(prolog.pid, signal.SIGKILL)
            prolog.communicate(timeout=20)  # its output is closed: the import does not hold it
        assert site.run_hook("epilog", variables).returncode == 0
        assert len(site.imports()) == 1
    site.wait_imports()
    assert outcomes(site, image) == ["image.imported"]


def test_maintenance_starts_what_nobody_works_on(site: Site, fresh_image: Callable[[], str]) -> None:
    """As after a reboot: the request is there, its process is gone, and no job waits."""
    image = fresh_image()
    variables = site.variables(BY_HAND + 1, SLURM_JOB_COMMENT=f"warmstart: image={image}")
    program = site.cluster.prefix / "libexec" / "warmstart" / "background"
    paths = NodePaths(str(site.var / "n1"), "")
    program.rename(program.with_suffix(".away"))
    try:
        with site.start_hook("prolog", variables) as prolog:
            wait_until("a request", lambda: bool(requests.waiting(paths)), 30)
            prolog.kill()
            prolog.communicate(timeout=20)
    finally:
        program.with_suffix(".away").rename(program)
    assert site.run_hook("epilog", variables).returncode == 0
    assert site.command("maintain").returncode == 0
    site.wait_imports()
    assert outcomes(site, image) == ["image.imported"]
    assert requests.waiting(paths) == []
