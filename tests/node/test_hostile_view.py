"""A job's view is root's, and its user reads it and can change nothing (docs/threats.md, rows 17, 21)."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lib import spank
from tests.lib.privileges import as_user
from tests.lib.runs import a_run
from warmstart import view
from warmstart.run.state import Run

JOB, OTHER = 64201, 64202  # uids; they need no accounts
VERDICT = "warmstart: refused\n"

pytestmark = [pytest.mark.threat(21), pytest.mark.usefixtures("capable_host")]


@pytest.fixture
def node() -> Iterator[Path]:
    """Give a node's state directory that every user can reach."""
    base = Path(tempfile.mkdtemp(prefix="ws-view-", dir="/var/tmp"))
    base.chmod(0o755)
    path = base / "n1"
    path.mkdir(mode=0o755)
    (base / "view").mkdir(mode=0o711)
    yield path
    shutil.rmtree(base)


@pytest.fixture(params=[True, False], ids=["acl", "no-acl"])
def acl(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Run a test twice: the file system has access control lists, or it has none."""

    def unsupported(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))

    if not request.param:
        monkeypatch.setattr(os, "setxattr", unsupported)
    return bool(request.param)


def published(node: Path) -> Path:
    """Publish the view of job 7; return its directory."""
    run: Run = a_run(uid=JOB, gid=JOB)
    view.publish(str(node.parent / "view"), run, {"verdict": VERDICT})
    return node.parent / "view" / "7"


@pytest.mark.threat(17)
def test_its_user_alone_reads_it_and_changes_no_name(node: Path, acl: bool) -> None:
    """No file can be added, moved, or held for the epilog to trip over; with access control lists, none be changed."""
    mine = published(node)
    file = mine / "verdict"
    assert as_user(JOB, file.read_text)
    assert not as_user(OTHER, file.read_text)
    attempts = (
        (mine / "more").touch,
        (mine / "more").mkdir,
        lambda: os.listdir(mine),
        lambda: mine.chmod(0o777),
        lambda: os.rename(mine, mine.parent / "8"),
        lambda: os.rename(file, mine / "other"),
        lambda: os.unlink(file),
        lambda: os.link(file, mine / "link"),
    )
    for attempt in attempts:
        assert not as_user(JOB, attempt)
    assert as_user(JOB, lambda: file.chmod(0o600)) is not acl
    assert as_user(JOB, lambda: file.write_text("forged")) is not acl
    assert (mine.stat().st_uid, mine.stat().st_mode & 0o7777) == (0, 0o711)


@pytest.mark.threat(17)
def test_the_plugin_reads_it_for_its_user_alone(node: Path, acl: bool) -> None:
    spank.need()
    mine = published(node)
    program = spank.build(node, sanitize=True)

    def task(uid: int) -> subprocess.CompletedProcess[str]:
        environment = {"SLURMD_NODENAME": "n1", "SLURM_JOB_ID": "7", "ASAN_OPTIONS": "detect_leaks=0"}
        argv = [str(program), "task", str(uid), "7", f"run={node.parent}", "workspace=/x", "cache=/y"]
        return subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)

    assert (task(JOB).returncode, task(JOB).stderr) == (1, VERDICT)
    other = task(OTHER)
    assert (other.returncode, other.stderr) == (0, "")
    os.chown(mine, JOB, JOB)
    assert task(JOB).returncode == 0
