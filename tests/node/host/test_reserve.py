"""The reserve on real file systems that are full: of bytes, of inodes."""

from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.lib import mounts
from tests.lib.left_runs import runs_left
from tests.lib.runs import a_run, changed
from warmstart import view
from warmstart.harvest import deferred
from warmstart.harvest.deferred import HARVESTS
from warmstart.host import reserve
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir
from warmstart.paths import NodePaths
from warmstart.run import state as runs
from warmstart.run.state import Seeded, SeededBundle, StateFull

pytestmark = pytest.mark.threat(12)

USER = 64201


def ext4(disk: Path) -> None:
    """Mount an ext4 of 16 MiB with 512 inodes, none of its blocks kept for root."""
    image = disk.with_suffix(".img")
    with image.open("wb") as file:
        file.truncate(16 << 20)
    subprocess.run(["/usr/sbin/mkfs.ext4", "-q", "-F", "-m", "0", "-b", "4096", "-N", "512", image], check=True)
    disk.mkdir()
    subprocess.run(["/bin/mount", "-o", "loop", image, disk], check=True)


@pytest.fixture(params=["tmpfs", "ext4"])
def node(base: Path, request: pytest.FixtureRequest) -> Iterator[NodePaths]:
    """Yield a node's directories, with a reserve, on a small file system that nothing has filled yet."""
    disk = base / "disk"
    if request.param == "ext4":
        ext4(disk)
        yield made(disk)
        return
    with mounts.tmpfs(disk, size="16m", inodes=512):
        yield made(disk)


def made(disk: Path) -> NodePaths:
    paths = NodePaths(f"{disk}/n1", f"{disk}/n1", "/nowhere")
    for directory in (paths.root, paths.state, paths.view):
        os.mkdir(directory, 0o711)
    assert reserve.fill(paths.reserve) == 0
    return paths


def fill_bytes(paths: NodePaths) -> None:
    """Write until no file gets another byte, also after what was delayed has reached the disk."""
    refused = 0
    for number in range(1000):
        with open(f"{paths.root}/hog{number}", "wb", buffering=0) as file:
            refused = 0 if written(file.fileno()) else refused + 1
            if refused == 5:
                return
            os.fsync(file.fileno())
    raise AssertionError("the disk takes ever more")


def written(fd: int) -> int:
    """Write until there is no space; return how many bytes."""
    size = 0
    try:
        while True:
            size += os.write(fd, b"x" * 512)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
    return size


def fill_inodes(paths: NodePaths) -> None:
    os.mkdir(f"{paths.root}/hogs")
    number = 0
    try:
        while True:
            os.close(os.open(f"{paths.root}/hogs/{number}", os.O_CREAT | os.O_WRONLY))
            number += 1
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise


FULL = pytest.mark.parametrize("fill", [fill_bytes, fill_inodes])


@FULL
def test_records_and_views_of_a_full_disk(node: NodePaths, fill: Callable[[NodePaths], None]) -> None:
    """They are written as ever, and read as ever; the job's user can read the view."""
    fill(node)
    record = a_run(uid=USER, gid=USER)
    long = changed(record, seeded={"numba": Seeded("ab", [SeededBundle("site", "b", "ab", ["x" * 60] * 200)])})
    with runs.job_lock(node.state, 7, after(1)):
        for number in range(10):
            runs.save(node.state, changed(long, facts={"n": str(number)}))
    found = runs.load(node.state, 7)
    assert found is not None
    assert found.own.facts == {"n": "9"}
    view.publish(node.view, record, {"verdict": "warmstart: no\n"})
    assert Path(node.view, "7/verdict").read_text() == "warmstart: no\n"
    cat = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "cat", f"{node.view}/7/verdict"]
    assert subprocess.run(cat, check=True, capture_output=True).stdout == b"warmstart: no\n"
    deferred.defer(node, HARVESTS, record, 1.5)
    assert [item.name for item in runs_left(node, HARVESTS)] == [record.name]
    runs.forget(node.state, 7)
    view.remove(node.view, record)
    assert os.listdir(node.view) == []


@FULL
def test_a_reserve_that_is_used_up(
    node: NodePaths, fill: Callable[[NodePaths], None], monkeypatch: pytest.MonkeyPatch, base: Path
) -> None:
    """The view lies in memory."""
    for path in [*Path(node.reserve).glob("file-*"), *Path(node.reserve).glob("directory-*")]:
        path.rename(path.with_name(f"x{path.name}"))
    fill(node)
    with (
        pytest.raises(StateFull, match="the reserve is used up"),
        runs.job_lock(node.state, 7, after(1)),  # tmpfs makes directories without bytes
    ):
        runs.save(node.state, a_run())
    with mounts.tmpfs(base / "run"):
        monkeypatch.setattr(view, "SPARE", f"{base}/run")
        record = a_run(uid=USER, gid=USER)
        for text in ("one", "two"):
            view.publish(node.view, record, {"verdict": text})
        assert Path(f"{base}/run{node.view}/7/verdict").read_text() == "two"
        view.remove(node.view, record)
        assert os.listdir(f"{base}/run{node.view}") == []


def test_a_reserve_is_made_once_and_completed(node: NodePaths) -> None:
    assert reserve.missing(node.reserve) == 0
    cut = sorted(Path(node.reserve).glob("file-*"))
    for path in cut[1:]:
        os.truncate(path, 0)
    fill_bytes(node)
    with opened_dir(node.root) as fd:
        os.close(reserve.open_file(node.reserve, fd, "one", 0o600))
        assert os.stat("one", dir_fd=fd).st_size == reserve.SIZE
        with pytest.raises(OSError, match="the reserve is used up"):
            reserve.open_file(node.reserve, fd, "two", 0o600)
    for hog in Path(node.root).glob("hog*"):
        hog.unlink()
    assert reserve.fill(node.reserve) == 0
    assert len(os.listdir(node.reserve)) == reserve.FILES + reserve.DIRECTORIES


def test_two_hooks_of_one_job_share_a_directory(node: NodePaths) -> None:
    fill_inodes(node)
    reserve.make_directory(node.reserve, None, f"{node.state}/7", 0o700)
    with pytest.raises(FileExistsError):
        reserve.make_directory(node.reserve, None, f"{node.state}/7", 0o700)
