"""Loop devices, also where /dev has no nodes of them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.lib.pod_jobs import enter_pod, in_pod
from warmstart.host import linux, loops
from warmstart.images import scratch

CAPS = scratch.Caps(size=1 << 20, files=16)


def packed(directory: Path, content: str = "x") -> Path:
    (directory / "tree").mkdir(parents=True)
    (directory / "tree" / "f").write_text(content)
    result = directory / "bundle.sqsh"
    subprocess.run(["/usr/bin/mksquashfs", directory / "tree", result, "-quiet", "-no-progress"], check=True)
    return result


def mounted_in_a_pod(path: str, target: str) -> list[str]:
    """Mount a squashfs there; return what is read, whether the device has that file, and what is left in /dev."""
    enter_pod()
    before = set(os.listdir("/dev"))
    file = os.open(path, os.O_RDONLY)
    device, source = loops.attach(file, path)
    linux.mount(source, target, "squashfs", linux.MS_RDONLY | linux.RESTRICTED)
    os.close(device)
    is_attached = loops.is_attached(os.stat(target).st_dev, file)
    return [Path(target, "f").read_text(), str(is_attached), *sorted(set(os.listdir("/dev")) - before)]


def test_a_device_that_dev_does_not_have(tmp_path: Path) -> None:
    path = packed(tmp_path)
    (tmp_path / "target").mkdir()
    assert in_pod(mounted_in_a_pod, str(path), str(tmp_path / "target")) == ["x", "True"]


def made_in_a_pod(path: str) -> bool:
    """Make an import's file system; return whether that worked."""
    enter_pod()
    fd = os.open(path, os.O_RDONLY)
    is_made = scratch.mount_loop_filesystem(fd, path, ".", CAPS)
    return is_made and os.path.ismount(path) and not os.statvfs(path).f_flag & os.ST_RDONLY


def test_an_imports_disk_in_a_pod(tmp_path: Path) -> None:
    assert in_pod(made_in_a_pod, str(tmp_path))


def files_in_a_pod(path: str) -> bool:
    """Return whether a file with a device that /dev does not have is known."""
    enter_pod()
    with Path(path).open("rb") as file:
        device, _ = loops.attach(file.fileno(), path)
    try:
        return (os.stat(path).st_dev, os.stat(path).st_ino) in loops.backing_files()
    finally:
        os.close(device)


def test_the_files_of_all_devices_in_a_pod(tmp_path: Path) -> None:
    assert in_pod(files_in_a_pod, str(packed(tmp_path)))


def why_not(_: str) -> str:
    """Return why no device can be had without its control device."""
    enter_pod("loop-control")
    with pytest.raises(FileNotFoundError) as raised:
        loops.attach(0, "x")
    return str(raised.value.filename)


def test_without_the_control_device() -> None:
    assert in_pod(why_not, "") == loops.CONTROL
