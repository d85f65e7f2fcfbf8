"""A program that outlives its parent: nothing of the parent's is left to it."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pytest

from tests.lib import processes
from tests.lib.processes import wait_until
from warmstart.host import detached

REPORT = """\
#!{python} -IS
import json, os, signal
kept = [int(name) for name in os.listdir("/proc/self/fd")]
links = {{os.readlink(f"/proc/self/fd/{{fd}}") for fd in kept if os.path.exists(f"/proc/self/fd/{{fd}}")}}
report = {{
    "descriptors": sorted(links - {{f"/proc/{{os.getpid()}}/fd"}}),
    "session": os.getsid(0), "group": os.getpgid(0), "environment": dict(os.environ), "cwd": os.getcwd(),
    "oom": open("/proc/self/oom_score_adj").read().strip(),
    "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
}}
with open("{out}.new", "w") as file:
    json.dump(report, file)
os.rename("{out}.new", "{out}")
"""


def test_it_has_nothing_of_its_parent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither descriptors nor session, group, directory or blocked signals; of the environment slurm.conf's path."""
    monkeypatch.setenv("SLURM_CONF", "/etc/other.conf")
    program, out = tmp_path / "report", tmp_path / "out"
    program.write_text(REPORT.format(python=sys.executable, out=out))
    program.chmod(0o755)
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        detached.start([str(program)])
        os.close(writer)
        assert os.read(reader, 1) == b""  # nobody else holds it: a hook that waits for the end of its output goes on
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        os.close(reader)
    wait_until("its report", out.exists, 20)
    report = json.loads(out.read_text())
    assert report["descriptors"] == ["/dev/null"]
    assert os.getsid(0) != report["session"] == report["group"]
    assert {name: value for name, value in report["environment"].items() if name != "LC_CTYPE"} == {
        "LC_ALL": "C.UTF-8",
        "SLURM_CONF": "/etc/other.conf",
    }
    assert (report["cwd"], report["blocked"]) == ("/", [])
    assert report["oom"] == "1000"  # before jobs and slurmd: nobody bounds its memory, and it is started again


def test_a_program_that_is_not_there_harms_nobody() -> None:
    before = processes.children(os.getpid())
    detached.start(["/nowhere/program"])
    assert processes.children(os.getpid()) <= before


def test_systemd_starts_a_unit_where_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where it cannot, as without the unit, or where none is named, the program is started all the same."""
    log, systemctl, done = tmp_path / "log", tmp_path / "systemctl", tmp_path / "done"
    systemctl.write_text(f'#!/bin/sh\necho "$@" >> {log}\n[ ! -e {tmp_path}/broken ]\n')
    systemctl.chmod(0o755)
    monkeypatch.setattr(detached, "SYSTEMD", str(tmp_path))
    monkeypatch.setattr(detached, "SYSTEMCTL", str(systemctl))
    program = ["/usr/bin/touch", str(done)]
    detached.start(program, unit="warmstart-import@n1.service")
    assert (log.read_text(), done.exists()) == ("start --no-block warmstart-import@n1.service\n", False)
    for named in (False, True):
        (tmp_path / "broken").touch()
        detached.start(program, unit="warmstart-import@n1.service" if named else "")
        processes.wait_until("the program", done.exists, 20)
        done.unlink()
    assert len(log.read_text().splitlines()) == 2


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Return a directory with the files of /proc/self for a process in cgroups of both versions."""
    mounts = {"unified": "cgroup2 none rw", "memory": "cgroup none rw,memory", "cpuset": "cgroup none rw,cpuset"}
    lines = [f"1 2 0:1 / {tmp_path}/{name} rw - {rest}" for name, rest in mounts.items()]
    (tmp_path / "mountinfo").write_text("\n".join(lines) + "\n")
    for name in mounts:
        (tmp_path / name).mkdir()
    return tmp_path


def joined(proc: Path, cgroups: str) -> list[str]:
    """Leave cgroups; return those that the process joined, relative to where they are mounted."""
    (proc / "cgroup").write_text(cgroups)
    return [os.path.relpath(path, proc) for path in detached.leave_cgroups(str(proc))]


def test_it_leaves_slurms_cgroups(proc: Path) -> None:
    """In every hierarchy, and into one of its own; the job's limits and end do not reach it."""
    job = "/system.slice/slurmstepd.scope/job_7/step_extern/slurm"
    assert joined(proc, f"2:memory:/slurm/uid_1/job_7\n1:cpuset:/\n0::{job}\n") == [
        "memory/warmstart-import",
        "unified/warmstart-import",
    ]
    assert (proc / "unified" / "warmstart-import" / "cgroup.procs").read_text() == str(os.getpid())


def test_it_stays_in_other_cgroups(proc: Path) -> None:
    assert joined(proc, "2:memory:/docker/ab\n0::/system.slice/warmstart-maintain.service\n") == []


def test_a_cgroup_that_takes_no_process(proc: Path) -> None:
    """A new cpuset of version 1 has no processors: the top takes it. Where nothing works, it stays."""
    (proc / "cpuset" / "warmstart-import" / "cgroup.procs").mkdir(parents=True)
    (proc / "memory").rmdir()
    (proc / "memory").touch()
    assert joined(proc, "2:memory:/slurm/uid_1\n1:cpuset:/slurm/uid_1\n") == ["cpuset"]
