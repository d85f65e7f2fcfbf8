"""The directory of one import: private, bounded, gone afterwards, found again after a kill."""

from __future__ import annotations

import fcntl
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.image_site import CAPS
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir
from warmstart.host.identity import Identity
from warmstart.host.worker import Worker
from warmstart.images import scratch
from warmstart.images.scratch import Caps, Exceeded, Watch

ME = Identity("me", os.geteuid(), os.getegid())


def test_is_private_and_gone_afterwards(tmp_path: Path) -> None:
    """The outer directory can't be listed by others, the inner one is the account's alone; both are removed."""
    with scratch.opened(str(tmp_path), "n1", "r1", ME, CAPS) as work:
        path = Path(work.path)
        assert path.stat().st_mode & 0o7777 == 0o700
        assert path.parent.stat().st_mode & 0o7777 == 0o710
        assert path.parent.name.startswith("import.r1.")
        (path / "deep").mkdir()
        (path / "deep" / "file").touch()
        (path / "link").symlink_to("/etc")
    assert os.listdir(tmp_path / "n1") == []


def test_is_gone_after_a_failure(tmp_path: Path) -> None:
    """An import that fails leaves nothing behind."""
    with pytest.raises(RuntimeError), scratch.opened(str(tmp_path), "n1", "r1", ME, CAPS):
        raise RuntimeError
    assert os.listdir(tmp_path / "n1") == []


def test_removes_what_dead_hooks_left_and_nothing_else(tmp_path: Path) -> None:
    """A directory that nobody has locked goes; a live import's and a job's stay."""
    (tmp_path / "n1" / "import.dead.00" / "x").mkdir(parents=True)
    (tmp_path / "n1" / "7.r0").mkdir()
    live = tmp_path / "n1" / "import.live.00"
    live.mkdir()
    fd = os.open(live, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    try:
        with scratch.opened(str(tmp_path), "n1", "r1", ME, CAPS):
            assert {"7.r0", "import.live.00"} < set(os.listdir(tmp_path / "n1"))
            assert not (tmp_path / "n1" / "import.dead.00").exists()
    finally:
        os.close(fd)
    assert set(os.listdir(tmp_path / "n1")) == {"7.r0", "import.live.00"}


def test_a_full_or_broken_disk_is_told_apart(tmp_path: Path) -> None:
    """Only what no user can cause is the node's fault."""
    with pytest.raises(scratch.ScratchUnusable), scratch.disk_errors("/w"):
        raise OSError(28, "No space left on device")
    with pytest.raises(scratch.ScratchBroken), scratch.disk_errors("/w"):
        raise OSError(30, "Read-only file system")
    (tmp_path / "file").touch()
    with pytest.raises(scratch.ScratchUnusable), scratch.opened(str(tmp_path / "file"), "n1", "r1", ME, CAPS):
        pytest.fail("a file is no directory")


def test_is_a_file_system_of_its_own(tmp_path: Path) -> None:
    """As large as its caps, of the account's, without setuid and devices; no name of its is left afterwards."""
    with scratch.opened(str(tmp_path), "n1", "r1", ME, CAPS) as work:
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
    assert os.listdir(tmp_path / "n1") == []


@pytest.mark.parametrize("program", ["MKE2FS", "MOUNT"])
def test_without_a_file_system_it_is_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """A node without mke2fs, or without loop devices: nothing is left of the attempt, and programs are watched."""
    monkeypatch.setattr(scratch, program, "/bin/false")
    with scratch.opened(str(tmp_path), "n1", "r1", ME, CAPS) as work:
        assert not work.is_loop_filesystem
        assert os.listdir(Path(work.path).parent) == [Path(work.path).name]
        assert isinstance(work.full("reg.io/a", "said"), scratch.ScratchUnusable)
    assert isinstance(work._replace(is_loop_filesystem=True).full("reg.io/a", "said"), scratch.ImageTooLarge)


def test_what_a_killed_hook_has_mounted_goes(tmp_path: Path) -> None:
    """The next import, or maintenance, unmounts and removes it."""
    child = os.fork()
    if not child:
        try:
            with scratch.opened(str(tmp_path), "n1", "r1", ME, CAPS):
                os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    os.waitpid(child, 0)
    assert str(tmp_path) in Path("/proc/self/mountinfo").read_text()
    with opened_dir(str(tmp_path / "n1")) as node:
        scratch.remove_abandoned(node)
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert os.listdir(tmp_path / "n1") == []


def test_a_failing_disk_below_drains_no_node(tmp_path: Path) -> None:
    """A user can fill that disk, which looks like one that fails."""
    with scratch.opened(str(tmp_path), "n1", "r1", ME, CAPS) as work:
        with pytest.raises(scratch.ScratchUnusable), work.errors():
            raise OSError(5, "Input/output error")
        with pytest.raises(scratch.ScratchBroken), work._replace(is_loop_filesystem=False).errors():
            raise OSError(5, "Input/output error")


def test_nobody_keeps_the_disk_full(tmp_path: Path) -> None:
    """Whoever holds the mount, as a process that an import left behind could: what layers expanded to is freed."""
    with scratch.opened(str(tmp_path), "n1", "r1", ME, CAPS) as work:
        (Path(work.path) / "layer").write_bytes(os.urandom(4 << 20))
        work.sync()
        disk = os.open(Path(work.path).parent / "disk", os.O_RDONLY)
        assert os.fstat(disk).st_blocks * 512 > 4 << 20
        held = os.open(work.path, os.O_PATH)
    assert os.fstat(disk).st_blocks == 0
    os.close(held)
    os.close(disk)
    assert os.listdir(tmp_path / "n1") == []


def test_other_users_do_not_reach_the_mount(tmp_path: Path) -> None:
    """They read its name in /proc/self/mountinfo, and O_PATH asks for no more than a way there."""
    for above in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        above.chmod(0o755)
    importer, stranger = Identity("importer", 60001, 60001), Identity("stranger", 60002, 60002)
    with scratch.opened(str(tmp_path), "n1", "r1", importer, CAPS) as work:
        for identity, reached in ((importer, True), (stranger, False)):
            with Worker(identity) as worker:
                assert worker.run(after(10), _reaches, work.path) is reached


def _reaches(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_PATH))
    except PermissionError:
        return False
    return True


# The caps of an import that no file system holds: what counts, and that looking is safe.


ROOMY = Caps(1 << 30, 1000)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[int]:
    """Return an open directory."""
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def test_counts_bytes_and_files(directory: int, tmp_path: Path) -> None:
    """In directories, too; a hole takes no space."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "file").write_bytes(os.urandom(1 << 20))
    (tmp_path / "hole").touch()
    os.truncate(tmp_path / "hole", 1 << 40)
    Watch(directory, ROOMY).look()
    Watch(directory, ROOMY._replace(files=4)).look()
    with pytest.raises(Exceeded):
        Watch(directory, ROOMY._replace(files=3)).look()
    with pytest.raises(Exceeded):
        Watch(directory, ROOMY._replace(size=1 << 20)).look()  # the directories take some as well
    Watch(directory, ROOMY._replace(size=2 << 20)).look()


def test_leads_nowhere_else_and_ends(directory: int, tmp_path: Path) -> None:
    """A link counts as itself, and directories in each other end somewhere."""
    (tmp_path / "link").symlink_to("/usr")
    Watch(directory, ROOMY._replace(files=1)).look()
    deep = tmp_path
    for _ in range(scratch.DEEPEST + 1):
        deep /= "d"
        deep.mkdir()
    with pytest.raises(Exceeded):
        Watch(directory, ROOMY).look()


def test_looks_now_and_then(directory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once, and not again before its time: what is looked at is large."""
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    watch = Watch(directory, ROOMY._replace(files=1))
    watch()
    (tmp_path / "one").touch()
    (tmp_path / "two").touch()
    now[0] += scratch.EVERY_S / 2
    watch()
    now[0] += scratch.EVERY_S
    with pytest.raises(Exceeded):
        watch()
