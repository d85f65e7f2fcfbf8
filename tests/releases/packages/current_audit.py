"""The unit that keeps the audit log current, under a systemd of its own, where the package is installed.

Run by `test_deb` in a root file system of `tests/releases/packages/fresh`. Hooks run by hand.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.lib.processes import wait_until
from tests.releases.packages.systemd import Systemd, started
from warmstart.paths import Installation

USR = Installation("/usr")
NODE = "of-another-name"
LOG = Path("/var/log/warmstart/audit.jsonl")
UNIT = "warmstart-audit.service"
SECONDS = 60
POLICY = "version: 1\npaths: {store: /srv/warmstart}\nimages: {registries: [reg.example.com]}\nrules: [{name: all}]\n"


@pytest.fixture(scope="module")
def systemd() -> Iterator[Systemd]:
    shorter = Path(f"/etc/systemd/system/{UNIT}.d/shorter.conf")
    shorter.parent.mkdir()
    shorter.write_text("[Service]\nRestartSec=3\n")
    with started() as running:
        running.ctl("start", "warmstart-audit.path")
        yield running


def runs(systemd: Systemd) -> str:
    """Return what names the last run of the service; "" before the first one."""
    return systemd.shows(UNIT, "InvocationID")


def hook(name: str, job: int) -> None:
    variables = {"SLURM_JOB_ID": str(job), "SLURM_JOB_UID": "1000", "SLURM_JOB_GID": "1000", "SLURM_JOB_USER": "alice"}
    subprocess.run([f"/usr/libexec/warmstart/{name}"], check=True, env={**variables, "SLURMD_NODENAME": NODE})


def logged() -> list[tuple[int, str]]:
    """Return the jobs and hooks that the log has the end of."""
    lines = map(json.loads, LOG.read_text().splitlines()) if LOG.exists() else ()
    return [(line["job_id"], line["hook"]) for line in lines if line["event"] == "hook.finished"]


def is_logged(job: int, hook: str) -> bool:
    """Return whether the log has the end of a hook."""
    return (job, hook) in logged()


def test_the_log_is_current(systemd: Systemd) -> None:
    """Within a minute of each hook; a log that cannot be written loses nothing; an idle node starts nothing."""
    subprocess.run(["useradd", "--uid", "1000", "alice"], check=True)
    os.makedirs("/srv/warmstart")
    Path(USR.policy).write_text(POLICY)
    journal = Path(USR.node(NODE).journal)
    for job in (1, 2):  # the directory is there, and is empty, or not
        hook("prolog", job)
        wait_until("the prolog", partial(is_logged, job, "prolog"), SECONDS)
        hook("epilog", job)
        wait_until("the epilog", partial(is_logged, job, "epilog"), SECONDS)
    wait_until("the end of the service", lambda: not os.listdir(journal), SECONDS)
    wait_until("rest", lambda: systemd.shows(UNIT, "ActiveState") == "inactive", SECONDS)
    before = runs(systemd)
    time.sleep(20)
    assert runs(systemd) == before  # an idle node

    LOG.rename(LOG.with_suffix(".kept"))
    LOG.mkdir()  # cannot be opened as a file
    hook("prolog", 3)
    wait_until("a failure", lambda: "auto-restart" in systemd.shows(UNIT, "SubState"), SECONDS)
    LOG.rmdir()
    wait_until("its events", lambda: logged() == [(3, "prolog")], SECONDS)


def test_one_target_is_all_that_a_node_enables(systemd: Systemd) -> None:
    """It starts the units of a node, and stops them. What needs the store's host has a target of its own."""
    systemd.ctl("enable", "warmstart.target", "warmstart-store.target")
    node = ("warmstart-maintain.timer", "warmstart-harvest.timer", "warmstart-audit.path")
    for target, units in {
        "warmstart.target": node,
        "warmstart-store.target": ("warmstart-maintain-store.timer",),
    }.items():
        systemd.ctl("start", target)
        assert [systemd.shows(unit, "ActiveState") for unit in units] == ["active"] * len(units)
        systemd.ctl("stop", target)
        assert [systemd.shows(unit, "ActiveState") for unit in units] == ["inactive"] * len(units)
