"""Hooks run by hand with only Slurm's variables: odd environments, switches, policies, and a bug."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.lib import installation
from tests.lib.accounts import ALICE, BOB
from tests.lib.site import Site
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir, remove_tree

if TYPE_CHECKING:
    from collections.abc import Iterator


def task_prolog(site: Site, job_id: int, prefix: Path, user: str = ALICE) -> subprocess.CompletedProcess[str]:
    """Run the task prolog of a job on n1 as its user."""
    variables = {"SLURM_JOB_ID": str(job_id), "SLURMD_NODENAME": "n1"}
    return site.cluster.run([str(prefix / "libexec/warmstart/task-prolog")], user, env=variables, node="n1")


def test_a_prolog_by_hand(site: Site) -> None:
    """Five variables suffice. The workspace has the job's uid and gid, whatever passwd says."""
    gid = site.cluster.account(BOB).gid
    variables = site.variables(920001, SLURM_JOB_GID=str(gid))
    done = site.run_hook("prolog", variables)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    printed = task_prolog(site, 920001, site.cluster.prefix).stdout.splitlines()
    exported = dict(line.removeprefix("export ").split("=", 1) for line in printed)
    for name in ("WARMSTART_CACHE", "TMPDIR", "NUMBA_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR"):
        found = site.on_host("n1", exported[name]).stat()
        assert (found.st_uid, found.st_gid, found.st_mode & 0o7777) == (site.cluster.account(ALICE).uid, gid, 0o700)
    assert site.run_hook("epilog", variables).returncode == 0
    shown = site.command("audit", "--job", "920001", "--json")  # most tests call the same code in their own process
    assert (shown.returncode, shown.stderr) == (0, "")
    assert [json.loads(line) for line in shown.stdout.splitlines()] == site.audit("--job", "920001")


@pytest.mark.parametrize("hook", ["prolog", "epilog"])
@pytest.mark.parametrize(
    "change",
    [
        {"SLURM_JOB_ID": "seven"},
        {"SLURM_JOB_ID": "-1"},
        {"SLURM_JOB_UID": "4294967295"},
        {"SLURM_JOB_USER": "../../root"},
        {"SLURMD_NODENAME": "n1/../n2"},
        {"SLURMD_NODENAME": "n1\nn2"},
    ],
)
def test_an_environment_that_slurm_never_makes(site: Site, hook: str, change: dict[str, str]) -> None:
    """One line for slurmd's log, status 0, and nothing is made."""
    done = site.run_hook(hook, {**site.variables(920002), **change})
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith(f"warmstart: {next(iter(change))} is ")
    assert done.stderr.count("\n") == 1
    assert site.leftovers() == []


def test_no_environment_at_all(site: Site) -> None:
    """Likewise; the message names the first missing variable."""
    done = site.run_hook("prolog", {})
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (0, "", 1)


@pytest.mark.threat(19)
def test_switched_off(site: Site) -> None:
    """A file beside the policy stops everything: no message, nothing made, nothing audited."""
    (site.etc / "off").touch()
    try:
        done = [site.run_hook(hook, site.variables(920003)) for hook in ("prolog", "epilog")]
        assert [(one.returncode, one.stdout, one.stderr) for one in done] == [(0, "", "")] * 2
        assert site.leftovers() == []
    finally:
        (site.etc / "off").unlink()
    assert site.audit("--job", "920003") == []


@pytest.mark.threat(19)
def test_a_broken_edit_of_the_policy(site: Site) -> None:
    """The last good policy stays in force, and every job's audit says so."""
    assert site.command("policy", "show").returncode == 0
    assert site.run_hook("prolog", site.variables(920004)).returncode == 0  # the good one is compiled
    assert site.run_hook("epilog", site.variables(920004)).returncode == 0
    installation.write_policy(site.cluster.prefix, "version: 1\nrulez: []\n")
    job = site.finish(site.cluster.submit('#!/bin/sh\ntest -d "$NUMBA_CACHE_DIR"\n', ALICE, "--nodelist=n1"))
    assert job.state == "COMPLETED"
    rejected = site.events(job.job_id, "policy.rejected")
    assert [event["hook"] for event in rejected] == ["prolog", "epilog"]
    assert {event["in_force"] for event in rejected} == {"the last good one"}
    assert "rulez" in rejected[0]["error"]["reason"]


@pytest.fixture
def second(site: Site) -> Iterator[Path]:
    """Return a copy of the installation below another prefix, with the same policy and no state."""
    first, prefix = site.cluster.prefix, site.cluster.base / "second"
    shutil.copytree(first, prefix, symlinks=True, ignore=shutil.ignore_patterns("var"))
    for hook in ("prolog", "epilog", "task-prolog"):
        program = prefix / "libexec" / "warmstart" / hook
        program.write_text(program.read_text().replace(str(first), str(prefix)))
    yield prefix
    left = [os.listdir(prefix / "var/lib/warmstart" / part) for part in ("n1/state", "view")]
    with opened_dir(str(prefix.parent)) as parent:
        remove_tree(parent, prefix.name, after(60))  # a job may have mounted layers there
    assert left == [[], []]


def test_a_first_policy_that_is_broken(site: Site, second: Path) -> None:
    """Without any good policy jobs run as if warmstart were not installed."""
    installation.write_policy(second, "version: 1\nrulez: []\n")
    for hook in ("prolog", "epilog"):
        done = site.run_hook(hook, site.variables(920005), second)
        assert (done.returncode, done.stdout) == (0, "")
        assert done.stderr.startswith("warmstart: ")
    task = task_prolog(site, 920005, second)
    assert (task.returncode, task.stdout) == (0, "")


@pytest.fixture
def faulty(second: Path) -> Path:
    """Return a second installation with a bug in the last step of its prolog."""
    step = next((second / "lib/warmstart").glob("python-*/warmstart/steps/environment.py"))
    with step.open("a") as source:
        source.write("\n\ndef run(context, options):\n    raise ZeroDivisionError('planted')\n")
    (second / "lib/warmstart/python/hot.code").unlink()  # hooks load it instead of the modules
    return second


def test_a_bug(site: Site, faulty: Path) -> None:
    """The job runs without warmstart; earlier steps are undone; the audit has the traceback."""
    done = site.run_hook("prolog", site.variables(920006), faulty)
    assert (done.returncode, done.stdout) == (0, "")
    assert site.leftovers() == []  # the workspaces of both installations are in one place
    task = task_prolog(site, 920006, faulty)
    assert (task.returncode, task.stdout) == (0, "")
    crash = site.events(920006, "hook.crashed")[0]
    assert "ZeroDivisionError: planted" in crash["traceback"]
    assert {event["step"] for event in site.events(920006, "step.finished")} == {"workspace", "seed"}
    assert site.run_hook("epilog", site.variables(920006), faulty).returncode == 0
