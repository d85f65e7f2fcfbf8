"""The file system of one import: bounded, out of others' reach, gone afterwards."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from tests.support.image_site import CAPS
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir
from warmstart.host.identity import ROOT, Identity
from warmstart.host.worker import Worker
from warmstart.images import scratch


def test_is_a_file_system_of_its_own(tmp_path: Path) -> None:
    """As large as its caps, of the account's, without setuid and devices; no name of its is left afterwards."""
    with scratch.opened(str(tmp_path), "n1", "r1", ROOT, CAPS) as work:
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


def test_what_a_killed_hook_has_mounted_goes(tmp_path: Path) -> None:
    """The next import, or maintenance, unmounts and removes it."""
    child = os.fork()
    if not child:
        try:
            with scratch.opened(str(tmp_path), "n1", "r1", ROOT, CAPS):
                os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    os.waitpid(child, 0)
    assert str(tmp_path) in Path("/proc/self/mountinfo").read_text()
    with opened_dir(str(tmp_path / "n1")) as node:
        scratch.remove_abandoned(node)
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()
    assert os.listdir(tmp_path / "n1") == []


def test_nobody_keeps_the_disk_full(tmp_path: Path) -> None:
    """Whoever holds the mount, as a process that an import left behind could: what layers expanded to is freed."""
    with scratch.opened(str(tmp_path), "n1", "r1", ROOT, CAPS) as work:
        (Path(work.path) / "layer").write_bytes(os.urandom(4 << 20))
        work.sync()
        disk = os.open(Path(work.path).parent / "disk", os.O_RDONLY)
        assert os.fstat(disk).st_blocks * 512 > 4 << 20
        held = os.open(work.path, os.O_PATH)
    assert os.fstat(disk).st_blocks == 0
    os.close(held)
    os.close(disk)
    assert os.listdir(tmp_path / "n1") == []


def test_other_users_do_not_reach_the_mount(base: Path) -> None:
    """They read its name in /proc/self/mountinfo, and O_PATH asks for no more than a way there."""
    importer, stranger = Identity("importer", 60001, 60001), Identity("stranger", 60002, 60002)
    with scratch.opened(str(base), "n1", "r1", importer, CAPS) as work:
        for identity, reached in ((importer, True), (stranger, False)):
            with Worker(identity) as worker:
                assert worker.run(after(10), _reaches, work.path) is reached


def _reaches(path: str) -> bool:
    try:
        os.close(os.open(path, os.O_PATH))
    except PermissionError:
        return False
    return True
