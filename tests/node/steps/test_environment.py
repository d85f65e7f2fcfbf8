"""What a job's user cannot reach: tests/unit/steps/test_environment.py tries the rest without root."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.lib.runs import a_context, a_run, changed
from warmstart.steps import environment
from warmstart.steps.environment import Options

JOB = 64201
SCRIPT = Path(__file__).parents[3] / "packaging/libexec/task-prolog.in"


DAEMON = """{mounts}
exec -a 'slurmstepd: [7.batch]' /bin/bash -c '/bin/sh -c "{more}exec $USERS"; :'
"""
HIDDEN = "mount -t proc -o hidepid=2 proc /proc"


def printed(base: Path, mounts: str = "", more: str = "", **inherited: str) -> list[str]:
    """Run the real task prolog as the job's user in a batch step, by a daemon of root's, in a mount namespace."""
    script = base / "task-prolog"
    script.write_text(SCRIPT.read_text().replace("@RUN@", str(base)))
    (base / "node").chmod(0o755)
    users = f"setpriv --reuid={JOB} --regid={JOB} --clear-groups /bin/sh {script}"
    known = {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", "SLURMD_NODENAME": "node", "SLURM_JOB_ID": "7", "USERS": users}
    done = subprocess.run(
        ["unshare", "--mount", "/bin/bash", "-c", DAEMON.format(mounts=mounts, more=more)],
        env={**known, **inherited},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    return [line for line in done.stdout.splitlines() if environment.OWN not in line]


@pytest.fixture
def run(base: Path) -> Path:
    made = a_context(base)
    record = a_run(workspace=f"{base}/workspace", uid=JOB, gid=JOB)
    run = Path(record.directory)
    for name in ("cache", "tmp"):
        (run / name).mkdir(parents=True)
        os.chown(run / name, JOB, JOB)
    record = changed(record, path=f"{run}/cache", environment={"TMPDIR": f"{run}/tmp"})
    made = made._replace(policy=made.policy._replace(paths=made.policy.paths._replace(cache=f"{base}/constant")))
    environment.run(made._replace(run=record), Options({"A": f"{base}/constant/a", "B": "x"}, {}, ("cold today",)))
    return run


COLD = ["print cold today", "export WARMSTART_NOTICES={notice}", "export B=x"]


@pytest.mark.report
def test_a_closed_workspace_leads_nobody_to_a_directory_of_roots(base: Path, run: Path) -> None:
    """The constant path may be there, made when warmstart was installed: it is a cache where it is the job's own."""
    (base / "constant").mkdir()
    (base / "workspace").chmod(0o700)
    notice = f"{base}/view/7/notice"
    *rest, told = printed(base)
    assert told.startswith(f"print warmstart: you cannot enter {base}/workspace: this job runs cold")
    assert rest == [line.format(notice=notice) for line in COLD]
    os.chown(base / "constant", JOB, JOB)
    assert f"export A={base}/constant/a" in printed(base)


@pytest.mark.report
def test_a_batch_container_without_caches_is_no_closed_workspace(base: Path, run: Path) -> None:
    """It has the job's TMPDIR, and the directories above, which can be entered; or none of them."""
    (run / "cache").rmdir()
    notice = f"{base}/view/7/notice"
    rest = [line.format(notice=notice) for line in COLD]
    assert printed(base) == [*rest, f"export TMPDIR={run}/tmp"]
    (run / "tmp").rmdir()
    run.rmdir()
    assert printed(base) == rest
    (base / "workspace").rename(base / "elsewhere")
    assert printed(base) == rest


@pytest.mark.report
def test_a_batch_script_is_told_where_users_do_not_see_processes_of_root(base: Path, run: Path) -> None:
    """With hidepid=2. A step has a number; a batch script may inherit one, and its control group says what it is."""
    assert "print cold today" in printed(base, HIDDEN)
    assert "print cold today" not in printed(base, HIDDEN, SLURM_STEP_ID="0")
    cgroup = base / "cgroup"
    cgroup.write_text("0::/system.slice/slurmstepd.scope/job_7/step_batch/user/task_0\n")
    more = f"mount --bind {cgroup} /proc/\\$\\$/cgroup && "
    assert "print cold today" in printed(base, HIDDEN, more, SLURM_STEP_ID="0")


@pytest.mark.report
@pytest.mark.parametrize(("own", "told"), [("/tmp", True), ("/run/user", True), ("/var/tmp", False)])
def test_a_tmpdir_that_nobody_wished_is_told(base: Path, run: Path, own: str, *, told: bool) -> None:
    """Of a login's profile, or Slurm's own where that could not be made; it stays all the same."""
    if own == "/run/user":
        own = f"{own}/{JOB}"
        os.makedirs(own, exist_ok=True)
    said = printed(base, TMPDIR=own)
    assert any(line.startswith(f"print warmstart: TMPDIR is {own}") for line in said) is told
    assert f"export TMPDIR={run}/tmp" not in said
    (run / "cache").rename(run / "other")  # as in a container
    assert not any("TMPDIR" in line for line in printed(base, TMPDIR=own))
    if own.startswith("/run/user/"):
        os.rmdir(own)


@pytest.mark.report
@pytest.mark.parametrize(
    ("known", "directory"),
    [
        ({"LOGNAME": "alice"}, "alice"),
        ({"LOGNAME": "CORP\\alice"}, "CORP_alice"),
        ({"LOGNAME": "alice smith"}, "alice smith"),
        ({"USER": "alice@corp.example.com"}, "alice@corp.example.com"),
        ({"SLURM_JOB_USER": "a+b"}, "a+b"),  # `--export=NONE`, cron
    ],
)
def test_inductor_keeps_its_place_whatever_the_users_name(
    base: Path, run: Path, known: dict[str, str], directory: str
) -> None:
    """It is where Inductor looks without warmstart; in a TMPDIR of the job's own each job would find it empty."""
    assert f"export TORCHINDUCTOR_CACHE_DIR=/tmp/torchinductor_{directory}" in printed(base, **known)


@pytest.mark.parametrize("name", ["a\nexport EVIL=1", ".", "../x", ""])
def test_a_name_that_is_no_directorys_leads_nowhere(base: Path, run: Path, name: str) -> None:
    lines = printed(base, LOGNAME=name)
    assert not [line for line in lines if "torchinductor_" in line or "EVIL" in line]
