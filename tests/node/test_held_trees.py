"""Processes that outlive their job and hold the tree that is being removed off the clock (docs/threats.md, row 43)."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.lib.privileges import drop_to
from tests.lib.processes import wait_until
from tests.lib.runs import a_context, a_run
from warmstart.ending import release as ends
from warmstart.ending.removal import WorkspaceBusy, remove
from warmstart.ending.waiting import ENDINGS
from warmstart.host import detached
from warmstart.host.deadline import after
from warmstart.queue import Queue
from warmstart.run import state as runs
from warmstart.steps import workspace
from warmstart.steps.contract import Context
from warmstart.steps.workspace import Options

pytestmark = pytest.mark.threat(43)
JOB = 64201


@pytest.fixture
def context(base: Path, monkeypatch: pytest.MonkeyPatch) -> Context:
    """Give the context of a run with a workspace, whose epilog has no time to remove anything."""
    monkeypatch.setattr(ends, "AT_ONCE_S", 0.0)
    monkeypatch.setattr(detached, "start", lambda _argv, **_: None)
    record = a_run(workspace=f"{base}/workspace", uid=JOB, gid=JOB)
    made = a_context(base, run=record)
    runs.save(made.paths.state, record)
    workspace.run(made, Options(("numba",)))
    return made


@contextmanager
def as_job(directory: Path, act: Callable[[], object]) -> Iterator[None]:
    """Run `act` again and again as the job's user, with this working directory, during a `with`."""
    pid = os.fork()
    if not pid:
        try:
            os.chdir(directory)
            drop_to(JOB, JOB)
            while True:
                with suppress(OSError):
                    act()
        finally:
            os._exit(1)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def release(context: Context) -> Path:
    """End the run as its epilog does; return where the rest of it is."""
    assert ends.release(context, None).failure is None
    run = Path(context.run.directory)
    return run.parent / context.run.going


def test_a_process_that_writes_on(context: Context) -> None:
    """It reaches the tree by what it has open, not by a path; the run stays known, and goes when the process does."""
    run = Path(context.run.directory)
    (run / "tmp/deep").mkdir()
    os.chown(run / "tmp/deep", JOB, JOB)
    number = iter(range(1 << 30))

    def write() -> None:
        os.close(os.open(f"file-{next(number) % 1000}", os.O_CREAT | os.O_WRONLY))

    with as_job(run / "tmp/deep", write):
        wait_until("its files", lambda: len(os.listdir(run / "tmp/deep")) > 10, 20)
        moved = release(context)
        assert not run.exists()
        with pytest.raises(PermissionError), as_user_path(moved / "tmp"):
            pass
        with suppress(WorkspaceBusy):  # it was faster than the process, or was not
            remove(context.run, after(0.5))
    assert remove(context.run, after(20)).is_whole
    assert os.listdir(run.parent) == []
    assert [item.key for item in Queue(context.paths, ENDINGS).all()] == [context.run.name]


@contextmanager
def as_user_path(path: Path) -> Iterator[None]:
    """Look at a path as the job's user; raises what that user's look raises."""
    os.seteuid(JOB)
    try:
        os.stat(path)
        yield
    finally:
        os.seteuid(0)


def test_a_process_that_moves_its_directories_away(context: Context, base: Path) -> None:
    """It may take what is its own out of the tree; root follows it nowhere, and removes nothing of others."""
    run = Path(context.run.directory)
    outside, victim = base / "outside", base / "outside/victim"
    victim.mkdir(parents=True)
    (victim / "precious").write_text("x")
    os.chown(outside, JOB, JOB)
    for level in range(3):
        folder = run / "tmp" / "/".join(["d"] * (level + 1))
        folder.mkdir()
        os.chown(folder, JOB, JOB)
        for number in range(200):
            (folder / str(number)).touch()
    there = os.open(outside, os.O_RDONLY)

    def swap() -> None:
        os.rename("d/d", "away", dst_dir_fd=there)
        os.rename("away", "d/d", src_dir_fd=there)

    with as_job(run / "tmp", swap):
        release(context)
        for _ in range(20):
            with suppress(WorkspaceBusy):
                remove(context.run, after(5))
    os.close(there)
    assert (victim / "precious").read_text() == "x"
    assert remove(context.run, after(20)).is_whole
    assert os.listdir(run.parent) == []
