"""Imports apart from jobs, in a real cluster: they outlive whoever asked, and nothing waits for them but by choice.

`site` checks after each test that no node is drained and that no job has left anything.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.accounts import ALICE, BOB
from tests.cluster.processes import wait_until
from tests.cluster.registry import Registry
from tests.cluster.site import RULES, Site
from warmstart.images import requests

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
    names = ("image.import-started", "image.import-failed", "image.imported")
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
        assert len(site.imports()) == 1
        (pid,) = site.imports()
        for job in ended:
            assert f"image {image} is still missing after" in job.output
            assert f"imported by pid {pid} on n" in job.output
        for node in ("n1", "n2"):
            site.cluster.kill_slurmd(node)
            site.cluster.start_slurmd(node)
        assert site.imports() == [pid]
    site.wait_imports()
    assert outcomes(site, image) == ["image.import-started", "image.imported"]
    later = site.finish(site.cluster.submit(SHOW, BOB, wanting(image), "--nodelist=n3"))
    assert later.output == "found\n"
    assert len(site.events(later.job_id, "image.reused")) == 1


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
    assert outcomes(site, image) == ["image.import-started"] * 2 + ["image.imported"]
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
    assert outcomes(site, image) == ["image.import-started", "image.imported"]


def test_maintenance_starts_what_nobody_works_on(site: Site, fresh_image: Callable[[], str]) -> None:
    """As after a reboot: the request is there, its process is gone, and no job waits."""
    image = fresh_image()
    variables = site.variables(BY_HAND + 1, SLURM_JOB_COMMENT=f"warmstart: image={image}")
    program = site.cluster.prefix / "libexec" / "warmstart" / "import"
    program.rename(program.with_suffix(".away"))
    try:
        with site.start_hook("prolog", variables) as prolog:
            directory = site.var / "n1" / "imports"
            wait_until("a request", lambda: bool(requests.keys(str(directory))), 30)
            prolog.kill()
            prolog.communicate(timeout=20)
    finally:
        program.with_suffix(".away").rename(program)
    assert site.run_hook("epilog", variables).returncode == 0
    (key,) = requests.keys(str(directory))
    requests.put_back(str(directory), key, attempts=1)  # its time between two attempts is over
    assert site.command("maintain").returncode == 0
    site.wait_imports()
    assert outcomes(site, image) == ["image.import-started", "image.imported"]
    assert requests.keys(str(directory)) == []
