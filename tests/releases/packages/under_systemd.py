"""The package's units, and slurmd's drop-in, under a systemd of its own that runs Slurm, too.

Run by `test_deb` in a root file system of `tests/releases/packages/fresh`, where the package is installed. slurmd is
restarted in a slow prolog, without the drop-in and with it.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lib.processes import wait_until
from tests.releases.packages.systemd import Systemd, started
from tests.releases.packages.trial import SLURM

SECONDS = 60
DEFAULT_S = 4  # of systemd's own, 90 elsewhere
PROLOG_S = 15
TIMES = "PrologEpilogTimeout=280\nBatchStartTimeout=360\n"
DROP_IN = "install -D -m 644 /usr/share/warmstart/slurmd.conf /etc/systemd/system/slurmd.service.d/warmstart.conf"
PROLOG = f"""\
#!/bin/sh
touch /var/tmp/in-prolog.$SLURM_JOB_ID
sleep {PROLOG_S}
touch /var/tmp/prolog-done.$SLURM_JOB_ID
"""


@pytest.fixture(scope="module")
def systemd() -> Iterator[Systemd]:
    """Yield a systemd that runs Slurm with a slow prolog, and kills what does not stop in time."""
    for path, text in {
        "/etc/systemd/system.conf.d/shorter.conf": f"[Manager]\nDefaultTimeoutStopSec={DEFAULT_S}s\n",
        "/etc/slurm/slow": PROLOG,
        "/etc/slurm/slurm.conf": f"{SLURM}Prolog=/etc/slurm/slow\nPrologFlags=Alloc,DeferBatch\n{TIMES}",
        "/etc/slurm/cgroup.conf": "CgroupPlugin=cgroup/v1\n",
        "/etc/default/slurmd": 'SLURMD_OPTIONS="-N localhost"\n',
    }.items():
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_text(text)
    Path("/etc/slurm/slow").chmod(0o755)
    subprocess.run(["useradd", "--create-home", "--uid", "1000", "alice"], check=True)
    subprocess.run(["install", "-d", "-o", "slurm", "/var/lib/slurm/slurmctld", "/var/lib/slurm/slurmd"], check=True)
    with started() as running:
        running.ctl("start", "munge", "slurmctld", "slurmd")
        wait_until("the node", lambda: "idle" in running.run("sinfo", "--noheader"), SECONDS)
        yield running


def test_one_target_is_all_that_a_node_enables(systemd: Systemd) -> None:
    """It starts the units of a node, and stops them. What needs the store's host has a target of its own."""
    systemd.ctl("enable", "warmstart.target", "warmstart-store.target")
    node = ("warmstart-maintain.timer", "warmstart-harvest.timer")
    for target, units in {
        "warmstart.target": node,
        "warmstart-store.target": ("warmstart-maintain-store.timer",),
    }.items():
        systemd.ctl("start", target)
        assert [systemd.shows(unit, "ActiveState") for unit in units] == ["active"] * len(units)
        systemd.ctl("stop", target)
        assert [systemd.shows(unit, "ActiveState") for unit in units] == ["inactive"] * len(units)


def restarted_in_prolog(systemd: Systemd) -> str:
    """Submit a job, and restart slurmd in its prolog; return the job's id once that prolog is over."""
    argv = ["runuser", "-u", "alice", "--", "sbatch", "--parsable", "--chdir=/tmp", "--output=/dev/null", "--wrap=true"]
    job = systemd.run(*argv)
    wait_until("the prolog", Path(f"/var/tmp/in-prolog.{job}").exists, SECONDS)
    systemd.ctl("restart", "slurmd")
    wait_until("the prolog's end", Path(f"/var/tmp/prolog-done.{job}").exists, SECONDS)
    return job


def state(systemd: Systemd, job: str) -> str:
    """Return a job's state and its reason; "" once it is over."""
    return systemd.run("squeue", "--noheader", "--jobs", job, "--states=all", "--format=%T %r")


def found(systemd: Systemd) -> tuple[str, str]:
    said = systemd.run("sh", "-c", "warmstart doctor --json || true")
    (finding,) = (row for row in json.loads(said)["findings"] if row["check"] == "slurm.times")
    return finding["status"], finding["found"]


@pytest.mark.report
def test_a_job_waits_for_ever_without_the_drop_in(systemd: Systemd) -> None:
    """Nobody tells slurmctld that its prolog is over. doctor says so."""
    assert found(systemd)[0] == "wrong"
    assert f"slurmd has {DEFAULT_S}s to stop" in found(systemd)[1]
    job = restarted_in_prolog(systemd)
    time.sleep(PROLOG_S)
    assert state(systemd, job) == "RUNNING Prolog"
    systemd.run("scancel", job)
    wait_until("the node", lambda: "idle" in systemd.run("sinfo", "--noheader"), SECONDS)


@pytest.mark.report
def test_a_job_runs_after_its_prolog_with_the_drop_in(systemd: Systemd) -> None:
    """The old slurmd ends when the prolog has, and the new one starts the job."""
    systemd.run("sh", "-ec", f"{DROP_IN}; systemctl daemon-reload")
    assert found(systemd)[0] == "ok"
    job = restarted_in_prolog(systemd)
    wait_until("its end", lambda: "COMPLETED" in state(systemd, job), SECONDS)
