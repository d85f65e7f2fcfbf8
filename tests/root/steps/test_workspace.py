"""`limits.workspace`: a run's directory is a file system of its own, so that its job fills nobody else's space."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.privileges import as_user
from tests.support.runs import a_context, a_record
from warmstart import record as records
from warmstart import run_end
from warmstart.host import linux
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir
from warmstart.images import scratch
from warmstart.run_end import Ending, Orphan
from warmstart.steps import workspace
from warmstart.steps.contract import Context
from warmstart.steps.workspace import Options, WorkspaceFull

pytestmark = pytest.mark.threat(12)

JOB = 64201
SIZE, FILES = 32 << 20, 2000
MOST = SIZE + (20 << 20)  # with the file system's reserve
OPTIONS = Options(("numba",))


@pytest.fixture
def context(base: Path) -> Iterator[Context]:
    """Give a context whose policy limits workspaces."""
    made = a_context(base)
    for directory in (base / "node", base / "node" / "state"):
        directory.chmod(0o755)
    limits = made.policy.limits._replace(workspace=SIZE, workspace_files=FILES)
    record = a_record(workspace=f"{base}/workspace", uid=JOB, gid=JOB)
    records.save(made.paths.state, record)
    yield made._replace(policy=made.policy._replace(limits=limits), record=record)
    made.store.close()


def filled(path: Path) -> int:
    """Write a file until there is no space; return its size."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT)
    try:
        while os.write(fd, bytes(1 << 20)):
            pass
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
    finally:
        os.close(fd)
    return path.stat().st_size


def mounts() -> str:
    """Return this namespace's mounts."""
    return Path("/proc/self/mountinfo").read_text()


def test_a_job_has_its_limit_and_takes_nothing_of_others(context: Context, base: Path) -> None:
    """Bytes and inodes, in tmp/, in cache/ and in the upper layers of its overlays; its directories are the job's."""
    outcome = workspace.run(context, Options(()))
    run = Path(context.record.run_directory)
    assert outcome.detail == {"path": str(run), "limit": "file system"}
    assert sorted(os.listdir(run)) == ["cache", "shown", "tmp"]
    assert (run.stat().st_uid, run.stat().st_mode & 0o777) == (0, 0o711)
    assert as_user(JOB, (run / "tmp" / "mine").touch)
    assert not as_user(JOB, lambda: os.listdir(run))
    found = os.statvfs(run)
    assert SIZE <= found.f_bfree * found.f_frsize < MOST
    assert FILES <= found.f_files < FILES * 1.1
    assert found.f_flag & os.ST_NOSUID
    assert found.f_flag & os.ST_NODEV
    assert SIZE <= filled(run / "tmp" / "all") < MOST
    (base / "workspace" / "of-others").write_bytes(bytes(1 << 20))


def test_its_end_frees_the_space_whoever_holds_it(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that outlived its job has the file system open: the bytes on the node's disk go all the same."""
    disks: list[int] = []
    real = scratch.mount_loop_filesystem

    def mount(outer: int, path: str, name: str, caps: scratch.Caps) -> bool:
        is_mounted = real(outer, path, name, caps)
        disks.append(os.open(scratch.DISK, os.O_RDONLY, dir_fd=outer))
        return is_mounted

    monkeypatch.setattr(scratch, "mount_loop_filesystem", mount)
    workspace.run(context, OPTIONS)
    run = Path(context.record.run_directory)
    held = os.open(run / "tmp" / "file", os.O_RDWR | os.O_CREAT)
    os.write(held, os.urandom(16 << 20))
    os.fsync(held)
    (disk,) = disks
    assert os.fstat(disk).st_blocks * 512 > 16 << 20
    ending = Ending(context.policy, context.paths, context.record, context.audit, context.store)
    assert run_end.release(ending, after(10)) == []
    assert (os.listdir(run.parent), str(run) in mounts()) == ([], False)
    assert os.fstat(disk).st_blocks == 0
    with pytest.raises(OSError, match="Input/output error"):  # unmounting wrote nothing: it was shut down
        os.write(held, b"x")
    os.close(held)
    os.close(disk)


@pytest.mark.threat(25)
def test_only_the_workspaces_own_file_system_is_shut_down(context: Context, base: Path) -> None:
    """Not one on a loop device that somebody else mounted in its place."""
    other = base / "other"
    (other / "mounted").mkdir(parents=True)
    with opened_dir(str(other)) as fd:
        assert scratch.mount_loop_filesystem(fd, str(other), "mounted", scratch.Caps(64 << 20, 1000))
    workspace.run(context, OPTIONS)
    linux.bind(str(other / "mounted"), context.record.run_directory)
    held = os.open(other / "mounted" / "file", os.O_RDWR | os.O_CREAT)
    ending = Ending(context.policy, context.paths, context.record, context.audit, context.store)
    run_end.release(ending, after(10))
    os.write(held, b"still there")
    os.fsync(held)
    os.close(held)


def test_a_retained_tmpdir_and_an_orphan(context: Context) -> None:
    """Both end as others do: what a job keeps stays for a while, and what nobody names goes."""
    workspace.run(context, OPTIONS)
    run = Path(context.record.run_directory)
    (run / "tmp" / "mine").write_text("x")
    kept = context.record._replace(keep=True)
    ending = Ending(context.policy, context.paths, kept, context.audit, context.store)
    assert run_end.release(ending, after(10)) == []
    assert sorted(os.listdir(run)) == [".kept", "tmp"]
    orphan = Orphan("workspace", str(run.parent), run.name, 7, run.name)
    assert not run_end.end_orphan(context.paths, orphan, 60, lambda _job: True, context.audit)
    assert run_end.end_orphan(context.paths, orphan, 0, lambda _job: True, context.audit)
    assert (os.listdir(run.parent), str(run) in mounts()) == ([], False)


@pytest.mark.parametrize("number", [errno.EIO, errno.EROFS, errno.ENOSPC])
def test_a_full_disk_below_drains_nothing(context: Context, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """There it looks like a failing one: the workspace is not made, and nothing of it is left."""
    real = os.chown

    def chown(*args: object, **more: object) -> None:
        if "tmp" in args:
            raise OSError(number, os.strerror(number))
        real(*args, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "chown", chown)
    with pytest.raises(WorkspaceFull):
        workspace.run(context, OPTIONS)
    run = Path(context.record.run_directory)
    assert (os.listdir(run.parent), str(run) in mounts()) == ([], False)


def test_a_node_that_cannot_do_it_runs_the_job(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a limit, and the audit says so; so does doctor."""
    monkeypatch.setattr(scratch, "MKE2FS", "/nonexistent")
    outcome = workspace.run(context, OPTIONS)
    assert outcome.detail["limit"] == "none"
    assert sorted(os.listdir(context.record.run_directory)) == ["cache", "shown", "tmp"]
