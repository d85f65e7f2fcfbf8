"""The file system of one import: bounded, out of others' reach, gone afterwards."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.lib.image_site import CAPS
from warmstart.host import linux, loops, remove
from warmstart.host.deadline import Deadline, after
from warmstart.host.files import opened_dir
from warmstart.host.identity import ROOT, Identity
from warmstart.host.worker import Worker
from warmstart.images import scratch
from warmstart.images.importers.base import run
from warmstart.images.reference import parse


def test_is_a_file_system_of_its_own(tmp_path: Path) -> None:
    with scratch.opened(str(tmp_path), "r1", ROOT, CAPS) as work:
        assert work.is_loop_filesystem
        found = os.fstatvfs(work.fd)
        assert CAPS.size <= found.f_bfree * found.f_frsize < CAPS.size * 1.1
        assert CAPS.files <= found.f_files < CAPS.files * 1.1
        assert found.f_flag & os.ST_NOSUID
        assert found.f_flag & os.ST_NODEV
        assert os.listdir(work.fd) == []
        assert Path(work.path).parent.joinpath("disk").stat().st_mode & 0o777 == 0o600
        assert work.path in Path("/proc/self/mountinfo").read_text()
    assert work.path not in Path("/proc/self/mountinfo").read_text()
    assert os.listdir(tmp_path) == []


def kill_in_import(workspace: Path) -> None:
    child = os.fork()
    if not child:
        try:
            with scratch.opened(str(workspace), "r1", ROOT, CAPS):
                os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    os.waitpid(child, 0)


def test_what_a_killed_hook_has_mounted_goes(tmp_path: Path) -> None:
    kill_in_import(tmp_path)
    assert str(tmp_path) in Path("/proc/self/mountinfo").read_text()
    with opened_dir(str(tmp_path)) as node:
        scratch.remove_abandoned(node)
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert os.listdir(tmp_path) == []


@pytest.mark.threat(12)
def test_nobody_keeps_the_disk_full(tmp_path: Path) -> None:
    """Whoever holds the mount, as a process that an import left behind could: what layers expanded to is freed."""
    with scratch.opened(str(tmp_path), "r1", ROOT, CAPS) as work:
        (Path(work.path) / "layer").write_bytes(os.urandom(4 << 20))
        work.sync(after(30))
        disk = os.open(Path(work.path).parent / "disk", os.O_RDONLY)
        assert os.fstat(disk).st_blocks * 512 > 4 << 20
        held = os.open(work.path, os.O_PATH)
    assert os.fstat(disk).st_blocks == 0
    os.close(held)
    os.close(disk)
    assert os.listdir(tmp_path) == []


@pytest.mark.threat(25)
def test_unmounting_writes_nothing(tmp_path: Path) -> None:
    """Neither after an import nor after a killed one: its file system is shut down first (docs/threats.md, row 25)."""
    with scratch.opened(str(tmp_path), "r1", ROOT, CAPS) as work:
        left = os.open(f"{work.path}/left", os.O_RDWR | os.O_CREAT)
        os.write(left, os.urandom(4 << 20))
    with pytest.raises(OSError, match="Input/output error"):
        os.write(left, b"x")
    os.close(left)
    kill_in_import(tmp_path)
    (mounted,) = (tmp_path).glob("import.*/*/")
    left = os.open(mounted / "left", os.O_RDWR | os.O_CREAT)
    with opened_dir(str(tmp_path)) as node:
        scratch.remove_abandoned(node)
    with pytest.raises(OSError, match="Input/output error"):
        os.write(left, b"x")
    os.close(left)


@pytest.mark.threat(25)
def test_only_its_own_file_system_is_shut_down(base: Path) -> None:
    with scratch.opened(str(base), "r1", ROOT, CAPS) as one:
        name = Path(one.path).parent.name
        with scratch.opened(str(base), "r2", ROOT, CAPS) as other:
            other_file = os.open(f"{other.path}/file", os.O_RDWR | os.O_CREAT)
            linux.bind(other.path, one.path)
            with opened_dir(str(base)) as node, scratch.freeing_disk(node, name):
                linux.unmount(Path(one.path).name, os.open(Path(one.path).parent, os.O_RDONLY))
            os.write(other_file, b"still there")
            os.fsync(other_file)
            os.close(other_file)


@pytest.mark.threat(25)
def test_a_file_system_that_cannot_be_shut_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loops, "is_attached", lambda *_: False)
    with scratch.opened(str(tmp_path), "r1", ROOT, CAPS):
        pass
    assert os.listdir(tmp_path) == []
    monkeypatch.setattr(remove, "remove_tree", hang)
    monkeypatch.setattr(scratch, "REMOVAL_S", 0.1)
    with scratch.opened(str(tmp_path), "r1", ROOT, CAPS):
        pass
    monkeypatch.undo()
    with opened_dir(str(tmp_path)) as node:
        scratch.remove_abandoned(node)
    assert os.listdir(tmp_path) == []


def hang(dir_fd: int, name: str, deadline: Deadline) -> None:
    del dir_fd, name, deadline
    signal.pause()


# What an import's programs see of others


SPY = """
for path in "$@"; do ls -A "$path" >/dev/null 2>&1 && echo "reached $path"; done
cut -d' ' -f5 /proc/self/mountinfo
"""


@pytest.mark.threat(31)
def test_imports_do_not_see_each_other(base: Path) -> None:
    """Neither in mountinfo nor by a name that somebody told.

    docs/threats.md, row 31: a program read another import's credentials and wrote its image.
    """
    account = Identity("importer", 60001, 60001)
    with (
        scratch.opened(str(base), "r1", account, CAPS) as one,
        scratch.opened(str(base), "r2", account, CAPS) as other,
    ):
        Path(one.path, "own").touch()
        Path(other.path, "auth.json").write_text("secret")
        completed = run(
            ["/bin/sh", "-c", SPY, "spy", other.path, f"{other.path}/auth.json", f"{one.path}/own"],
            reference=parse("reg.io/a:1"), scratch=one, deadline=after(20),
            identity=account, env={"PATH": "/usr/bin:/bin"},
        )  # fmt: skip
        found = completed.stdout.decode().splitlines()
        assert [line for line in found if line.startswith("reached")] == [f"reached {one.path}/own"]
        assert [line for line in found if line.startswith(str(base))] == [one.path]
        assert os.path.ismount(other.path)


@pytest.mark.threat(12)
def test_other_users_do_not_reach_the_mount(base: Path) -> None:
    """They read its name in /proc/self/mountinfo, and O_PATH asks for no more than a way there."""
    importer, stranger = Identity("importer", 60001, 60001), Identity("stranger", 60002, 60002)
    with scratch.opened(str(base), "r1", importer, CAPS) as work:
        for identity, reached in ((importer, True), (stranger, False)):
            assert Worker(identity).run(after(10), _reaches, work.path) is reached


def _reaches(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_PATH))
    except PermissionError:
        return False
    return True
