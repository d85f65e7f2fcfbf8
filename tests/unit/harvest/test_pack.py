"""What root packs: inode by inode its own, the same bytes for the same content, and nothing where it fails."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.lib.packed import MTIME_NS
from warmstart.harvest import pack as packing
from warmstart.harvest.pack import pack
from warmstart.host.deadline import after
from warmstart.host.files import DiskFailed
from warmstart.host.process import ProgramTooSlow


@pytest.fixture
def stage(tmp_path: Path) -> Path:
    path = tmp_path / "stage"
    (path / "m").mkdir(parents=True, mode=0o700)
    (path / "m" / "a.1").write_bytes(b"content")
    (path / "m" / "a.1").chmod(0o4600)
    for item in (path / "m" / "a.1", path / "m", path):
        os.utime(item, ns=(MTIME_NS, MTIME_NS))
    return path


def test_modes_and_owners_are_roots(stage: Path, tmp_path: Path) -> None:
    os.close(pack(str(stage), f"{tmp_path}/out", after(60)))
    listed = subprocess.run(
        ["unsquashfs", "-lln", "-no-progress", tmp_path / "out"], check=True, capture_output=True, text=True
    ).stdout
    rows = [line.split() for line in listed.splitlines() if "squashfs-root" in line]
    assert [(row[0], row[1], row[-1]) for row in rows] == [
        ("drwx------", "0/0", "squashfs-root"),
        ("drwxrwxrwx", "0/0", "squashfs-root/m"),
        ("-rw-rw-rw-", "0/0", "squashfs-root/m/a.1"),
    ]


def test_the_same_content_is_the_same_bytes(stage: Path, tmp_path: Path) -> None:
    contents = []
    for name in ("one", "two"):
        fd = pack(str(stage), f"{tmp_path}/{name}", after(60))
        contents.append(os.pread(fd, 1 << 20, 0))
        os.close(fd)
    assert contents[0] == contents[1] == (tmp_path / "one").read_bytes()


def test_what_fails_leaves_nothing(stage: Path, tmp_path: Path) -> None:
    with pytest.raises(DiskFailed):
        pack(f"{stage}-none", f"{tmp_path}/out", after(60))
    with pytest.raises(ProgramTooSlow):
        pack(str(stage), f"{tmp_path}/out", after(0))
    assert not (tmp_path / "out").exists()


def test_half_a_bundle_goes(stage: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "mksquashfs"
    program.write_text('#!/bin/sh\necho half > "$2"\necho "No space left on device" >&2\nexit 1\n')
    program.chmod(0o755)
    monkeypatch.setattr(packing, "MKSQUASHFS", str(program))
    with pytest.raises(DiskFailed, match="No space left"):
        pack(str(stage), f"{tmp_path}/out", after(60))
    assert not (tmp_path / "out").exists()
