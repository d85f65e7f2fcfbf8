"""A user's process that looks like a job's step daemon (docs/threats.md, row 33)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.lib.requirements import unavailable
from warmstart.slurm import commands

pytestmark = pytest.mark.threat(33)
USER = 64201
JOB_ID = 1_999_999_999  # no cluster of the tests gets that far
TITLE = f"slurmstepd: [{JOB_ID}.batch]"


@contextmanager
def running(executable: Path, *args: str, uid: int = 0) -> Iterator[int]:
    """Run a program under the title of a step daemon; give its id."""
    process = subprocess.Popen(
        [TITLE, *args], executable=executable, user=uid, group=uid, extra_groups=[],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        assert Path(f"/proc/{process.pid}/cmdline").read_text().startswith(TITLE)
        yield process.pid
    finally:
        process.kill()
        process.communicate()


@pytest.fixture
def daemon(base: Path) -> Path:
    """Give a program of root's with a step daemon's name, that anybody may run."""
    (base / "sbin").mkdir()
    return Path(shutil.copy("/bin/sleep", base / "sbin/slurmstepd"))


def test_roots_own_daemon_is_believed(daemon: Path) -> None:
    """The control; also when an upgrade of Slurm has replaced its file."""
    with running(daemon, "60") as pid:
        assert JOB_ID in commands.with_daemons()
        daemon.unlink()
        assert JOB_ID in commands.with_daemons()
        assert commands.job_of_daemon(f"/proc/{pid}") == JOB_ID
    assert JOB_ID not in commands.with_daemons()


def test_a_setuid_program_with_its_title() -> None:
    """`exec -a 'slurmstepd: [ID.batch]' su`: its effective uid is root's while it waits for a password."""
    su = shutil.which("su") or unavailable("su is not installed")
    with running(Path(su), uid=USER) as pid:
        assert os.stat(f"/proc/{pid}").st_uid == 0
        assert JOB_ID not in commands.with_daemons()
        assert commands.job_of_daemon(f"/proc/{pid}") is None


def test_a_setuid_program_with_its_name(daemon: Path) -> None:
    daemon.chmod(0o4755)
    with running(daemon, "60", uid=USER):
        assert JOB_ID not in commands.with_daemons()
    with running(daemon, "60"):  # like one that has made root its real uid, too
        assert JOB_ID not in commands.with_daemons()


def test_the_users_own_copy(daemon: Path) -> None:
    with running(daemon, "60", uid=USER) as pid:
        assert JOB_ID not in commands.with_daemons()
        assert commands.job_of_daemon(f"/proc/{pid}") is None


def test_another_program_of_roots() -> None:
    with running(Path("/bin/sleep"), "60"):
        assert JOB_ID not in commands.with_daemons()
