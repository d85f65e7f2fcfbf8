"""`warmstart maintain`: runs that wait, orphans, copies of bundles, the store. Real tools, as root."""

from __future__ import annotations

import errno
import fcntl
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.lib.node import Node, one
from tests.lib.privileges import as_user
from tests.lib.runs import a_run
from warmstart.caches.store import gc
from warmstart.caches.store.listing import Row
from warmstart.ending import removal, waiting
from warmstart.ending.waiting import ENDINGS
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir
from warmstart.queue import Queue
from warmstart.run import state as runs
from warmstart.run.state import Run
from warmstart.seed import copies, eviction, node_cache

pytestmark = pytest.mark.usefixtures("capable_host", "busy")


class Host(Node):
    """A node of whose jobs no hook has run: tests make what a prolog makes."""

    def __init__(self, base: Path, more: str = "") -> None:
        super().__init__(base, more)
        for path, mode in ((self.paths.state, 0o700), (self.paths.view, 0o711), (self.paths.stage, 0o700)):
            os.makedirs(path, mode=mode)
        self.workspace.mkdir()

    def run_of(self, job_id: int, run_id: str = "0a1b2c3d") -> Run:
        """Make what a prolog makes: record, view and workspace."""
        workspace = str(self.base / "workspace")
        record = a_run(job_id=job_id, view_id=job_id, run_id=run_id, workspace=workspace)
        os.makedirs(f"{self.paths.state}/{job_id}", mode=0o700, exist_ok=True)
        runs.save(self.paths.state, record)
        self.trees(record)
        return record

    def trees(self, record: Run) -> None:
        (Path(self.paths.view) / str(record.view_id)).mkdir()
        cache = Path(record.directory) / "cache"
        cache.mkdir(parents=True)
        Path(record.directory, record.mark).touch()
        (cache / "x").write_bytes(b"x")

    def left(self) -> list[str]:
        places = (self.paths.state, self.paths.view, self.paths.stage, str(self.workspace))
        return sorted(f"{os.path.basename(place)}/{name}" for place in places for name in os.listdir(place))

    def maintain(self, status: int = 0) -> None:
        assert self.command("maintain", "--node", "n1").exit_code == status


@pytest.fixture
def node(base: Path) -> Host:
    return Host(base)


@pytest.fixture
def immutable() -> Iterator[Callable[[Path], None]]:
    """Give what makes a file that not even root can remove; undone after the test."""
    made: list[Path] = []

    def make(path: Path) -> None:
        made.append(path)
        subprocess.run(["/usr/bin/chattr", "+i", path], check=True)

    yield make
    for path in made:
        if path.exists():
            mutable(path)


def mutable(path: Path) -> None:
    subprocess.run(["/usr/bin/chattr", "-i", path], check=True)


@pytest.mark.threat(21)
def test_one_run_that_cannot_be_removed_costs_no_other(node: Host, immutable: Callable[[Path], None]) -> None:
    held = [Path(node.paths.view) / "4", Path(node.run_of(4).directory) / "cache"]
    node.run_of(5)
    for job_id in (6, 7):
        node.trees(a_run(job_id=job_id, view_id=job_id, workspace=str(node.base / "workspace")))
    held += [Path(node.paths.view) / "6", node.workspace / "6.00000000"]
    for path in held:
        immutable(path)
    node.maintain(status=1)
    assert node.left() == ["state/4", "view/4", "view/6", "workspace/.4.0a1b2c3d", "workspace/6.00000000"]
    held[1] = node.workspace / ".4.0a1b2c3d" / "cache"
    errors = [event["code"] for event in node.failures()]
    assert errors == ["workspace-busy"] * 5  # of the run at its end, and of the attempt that follows
    for path in held:
        mutable(path)
    node.maintain()
    assert node.left() == []


@pytest.mark.threat(21)
def test_one_run_that_meets_a_bug_costs_no_other(node: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    node.run_of(4)
    node.run_of(5)
    real = runs.load

    def load(state: str, job_id: int) -> Run | None:
        if job_id == 4:
            raise RuntimeError("a bug")
        return real(state, job_id)

    monkeypatch.setattr(runs, "load", load)
    node.maintain(status=1)
    assert node.left() == ["state/4", "view/4", "workspace/4.00000000"]
    assert "a bug" in node.results()[-1]["traceback"]


@pytest.mark.threat(43)
def test_what_hooks_left_to_be_removed_goes(node: Host) -> None:
    """Of which a process was killed that was at it; and what nothing names any more, as after a loss of the state."""
    named, nameless = a_run(job_id=71, workspace=str(node.base / "workspace")), "72.0a1b2c3d"
    for name in (named.name, nameless):
        (node.workspace / f".{name}" / "tmp/deep").mkdir(parents=True)
    queue = Queue(node.paths, ENDINGS)
    waiting.leave(queue, named, is_done=True)
    node.maintain()
    assert node.left() == []
    assert queue.all() == []


def test_what_is_mounted_below_an_orphan_is_not_emptied(node: Host) -> None:
    node.trees(a_run(job_id=8, view_id=8, workspace=str(node.base / "workspace")))
    source = node.base / "precious"
    source.mkdir()
    (source / "file").write_text("kept")
    target = node.workspace / "8.00000000" / "cache" / "mnt"
    target.mkdir()
    subprocess.run(["/bin/mount", "--bind", str(source), str(target)], check=True)
    try:
        node.maintain()
        assert (source / "file").read_text() == "kept"
    finally:
        subprocess.run(["/bin/umount", "-q", str(target)], check=False)
    node.maintain()
    assert node.left() == []
    assert (source / "file").read_text() == "kept"


def test_copies_are_pruned_and_their_use_is_told_to_the_store(base: Path) -> None:
    node = Host(base, "seed: {keep: 12KiB}")
    now = time.time()
    copies = {}
    for name, age in (("old", 5 * 86400), ("older", 9 * 86400), ("fresh", 60)):
        bundle = node.publish(one(name, os.urandom(8000)))
        os.utime(node.directory() / f"{bundle}.sqsh", (0, 0))
        (row,) = (row for row in node.listing().rows if row.sha256 == bundle)
        copies[name] = fetch(node, row)
        os.utime(copies[name], (now - age, now - age))
    node.maintain()
    assert [path.exists() for path in copies.values()] == [False, False, True]
    assert [path.name for path in Path(node.paths.bundles).glob("*.json")] == [copies["fresh"].stem + ".json"]
    used = sorted(round((now - row["used"]) / 86400) for row in node.json("cache", "list"))
    assert used == [0, 5, 9]


def fetch(node: Host, row: Row) -> Path:
    store = node.client()
    directory, where = node.paths.bundles, node.namespace()
    node_cache.get(directory, where, row, store=store, most_bytes=1 << 30, deadline=after(60))
    return Path(copies.path_of(directory, row.sha256))


@pytest.mark.threat(22)
def test_only_one_run_maintains_a_node(node: Host) -> None:
    node.run_of(4)
    before = node.left()
    os.mkdir(node.paths.locks, mode=0o700)
    with open(f"{node.paths.locks}/maintenance", "w") as lock:
        lock.write(str(os.getpid()))
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        (report,) = node.json("maintain", "--node", "n1")
        assert report["failed"] == [f"another maintenance run is active on node n1 (process {os.getpid()})"]
    assert node.left() == before
    (event,) = node.failures()
    assert (event["hook"], event["code"]) == ("maintain", "maintenance-busy")
    assert not os.path.exists(node.paths.maintained)


@pytest.mark.threat(22)
def test_no_other_user_can_hold_a_lock_that_maintenance_waits_for(node: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever can open a file or directory for reading can lock it for ever."""
    locked: set[str] = set()
    real = fcntl.flock

    def flock(fd: int, operation: int) -> None:
        locked.add(os.readlink(f"/proc/self/fd/{fd}"))
        real(fd, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    node.run_of(4)
    waiting.leave(Queue(node.paths, ENDINGS), node.run_of(5), is_done=False)
    runs.forget(node.paths.state, 5)
    (node.workspace / "import.0a1b2c3d.0123").mkdir(mode=0o710)
    (node.base / "audit" / "audit.jsonl").touch(mode=0o644)  # as a site may have it
    node.maintain()
    assert {os.path.basename(path).partition(".")[0] for path in locked} >= {"maintenance", "4", "endings"}
    assert not [path for path in locked if as_user(64201, partial(os.open, path, os.O_RDONLY))]


@pytest.mark.threat(22)
def test_a_flock_on_the_nodes_directory_stops_nothing(node: Host) -> None:
    """Everybody can open it: the view, which jobs read, is below it."""
    with opened_dir(node.paths.root) as fd:
        fcntl.flock(fd, fcntl.LOCK_EX)
        node.maintain()


@pytest.mark.threat(22)
def test_the_last_success_is_known(node: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(eviction, "prune", fails)
    node.maintain(status=1)
    assert not os.path.exists(node.paths.maintained)
    monkeypatch.undo()
    monkeypatch.setattr(removal, "remove_tree", fails)
    node.run_of(4)
    node.maintain(status=1)
    os.unlink(node.paths.maintained)
    monkeypatch.undo()
    node.maintain()
    assert os.path.exists(node.paths.maintained)


def fails(*_: object) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.threat(22)
def test_one_node_that_cannot_be_maintained_costs_no_other_of_the_host(node: Host) -> None:
    other = node.installation.node("n0")
    for directory in (other.root, other.state):
        os.makedirs(directory, mode=0o700)
    os.chown(other.root, 64201, 64201)
    node.run_of(4)
    (n0, n1) = node.json("maintain")
    assert (n0["node"], n1["node"], n1["failed"]) == ("n0", "n1", [])
    assert "belongs to uid 64201" in n0["failed"][0]
    assert node.left() == []


@pytest.mark.threat(22)
def test_the_store_is_maintained_by_one_host(node: Host) -> None:
    bundle = node.publish(one("a"))
    directory = node.directory()
    for name in (".tmp-n9-dead", f"{'0' * 64}.sqsh"):
        (directory / name).write_bytes(b"half")
    assert node.json("maintain", "--store")["swept"] == 0
    real = time.time
    time.time = lambda: real() + 300_000
    try:
        assert node.json("maintain", "--store")["swept"] == 2
    finally:
        time.time = real
    assert sorted(path.name for path in directory.glob("*.*")) == [f"{bundle}.json", f"{bundle}.sqsh"]
    stamp = node.store / "caches" / "maintained"
    stamp.unlink()
    other = node.client()
    with other.worker.begin(after(60), gc.lock, other.path) as is_ours:
        assert is_ours(after(60))
        assert node.command("maintain", "--store").exit_code == 1
    (event,) = node.failures()
    assert event["code"] == "maintenance-busy"
    assert not stamp.exists()
    assert node.command("maintain", "--store").exit_code == 0
    assert stamp.stat().st_uid == node.owner.uid
