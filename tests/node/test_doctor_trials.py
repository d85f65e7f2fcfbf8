"""Checks of `warmstart doctor` that mount, as root: they report what this node supports and leave nothing behind."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lib import processes
from tests.lib.command_line import installed
from warmstart.doctor import trials
from warmstart.doctor.finding import Result
from warmstart.doctor.finding import run as run_checks
from warmstart.doctor.node import Node
from warmstart.host import linux, loops
from warmstart.policy.current import current_policy
from warmstart.seed import overlay

pytestmark = pytest.mark.usefixtures("capable_host")


@pytest.fixture
def here() -> Iterator[Node]:
    """Yield a node with a workspace of root's, below directories that only root can change."""
    base = Path(tempfile.mkdtemp(prefix="ws-doc-", dir="/var/tmp"))
    installation = installed(base)
    policy = current_policy(installation, keep=True).policy
    workspace = base / "workspace"
    workspace.mkdir()
    yield Node(installation, policy._replace(paths=policy.paths._replace(workspace=str(workspace))))
    shutil.rmtree(base)


def seeding(node: Node) -> Result:
    """Return what is found of seeding. Asserts that nothing is left behind."""
    (found,) = run_checks([trials.seeding], node)
    assert os.listdir(node.policy.paths.workspace) == []
    assert node.policy.paths.workspace not in Path("/proc/self/mountinfo").read_text()
    processes.wait_until("the loop devices", lambda: node.policy.paths.workspace not in _loops(), 10)
    return found


def _loops() -> str:
    return subprocess.run(["/sbin/losetup", "-l", "-n"], capture_output=True, text=True, check=True).stdout


def no_loops(*_: object, **__: object) -> tuple[int, str]:
    raise OSError(2, "No such file or directory")


def test_this_node_can(here: Node) -> None:
    found = seeding(here)
    assert found.status == "ok"
    assert trials.MAP in found.found or trials.NO_MAP in found.found


@pytest.mark.parametrize("mode", [0o755, 0o1777])
def test_before_the_first_job(here: Node, mode: int) -> None:
    """What the first prolog makes is tried where it makes it, in a directory of root's: nothing is unknown."""
    parent = here.policy.paths.workspace
    os.chmod(parent, mode)
    new = here._replace(policy=here.policy._replace(paths=here.policy.paths._replace(workspace=f"{parent}/no/such")))
    assert [found.status for found in run_checks([trials.seeding], new)] == ["ok"]
    assert os.listdir(parent) == []


def test_a_node_that_mounts_nothing(here: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """No loop devices, no overlay: advice, because jobs run all the same."""
    with monkeypatch.context() as patch:
        patch.setattr(loops, "attach", no_loops)
        found = seeding(here)
    assert (found.status, "No such file" in found.found) == ("advice", True)
    monkeypatch.setattr(overlay, "_OPTIONS", "no_such_option")
    assert seeding(here).status == "advice"


def test_a_container_that_may_not_open_devices(here: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_: object, **__: object) -> tuple[int, str]:
        raise PermissionError(errno.EPERM, "Operation not permitted", "/dev/loop0")

    monkeypatch.setattr(loops, "attach", denied)
    found = seeding(here)
    assert (found.status, found.change) == ("advice", trials.DENIED)


def test_a_workspace_on_a_containers_root(here: Node) -> None:
    """Which is an overlay: no upper layer of another one."""
    place = Path(here.policy.paths.workspace)
    for name in ("lower", "upper", "work"):
        (place.parent / name).mkdir()
    options = f"lowerdir={place.parent}/lower,upperdir={place.parent}/upper,workdir={place.parent}/work"
    linux.mount("warmstart-tests", str(place), "overlay", 0, options)
    try:
        (found,) = trials.seeding.find(here)
    finally:
        linux.detach_path(str(place))
    assert (found.status, found.change) == ("advice", trials.VOLUME)


def test_a_doctor_that_was_killed(here: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its mounts end with its process; the next run removes its files."""
    workspace = Path(here.policy.paths.workspace)

    def signal_and_wait(run: int, *_: object) -> bool:
        """Signal, and stay until well after the parent's end."""
        os.close(os.open("ready", os.O_CREAT, dir_fd=run))
        time.sleep(0.5)
        return True

    with monkeypatch.context() as patch:
        patch.setattr(overlay, "show", signal_and_wait)
        child = os.fork()
        if not child:
            try:
                list(trials.seeding.find(here))
            finally:
                os._exit(0)
    processes.wait_until("the mount", lambda: bool(list(workspace.glob(".doctor-*/ready"))), 20)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert len(os.listdir(workspace)) == 1
    assert seeding(here).status == "ok"
