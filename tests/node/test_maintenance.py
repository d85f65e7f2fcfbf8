"""`warmstart maintain`: spool, orphans, copies of bundles, and maintenance of the store. Real tools, as root."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.lib import mounts
from tests.lib.late_node import BOOT
from tests.lib.node import Node, one
from tests.lib.privileges import as_user
from tests.lib.runs import a_record
from warmstart import record as records
from warmstart import run_end
from warmstart.audit.journal import Journal
from warmstart.errand import Errands
from warmstart.harvest import deferred, spool
from warmstart.harvest.collect import collect
from warmstart.harvest.deferred import HARVESTS, REMOVALS
from warmstart.harvest.scan import OUT_OF_TIME
from warmstart.harvest.spool import Delivered, Spooled
from warmstart.host import space
from warmstart.host.deadline import after
from warmstart.host.files import opened_dir
from warmstart.policy.current import current_policy
from warmstart.record import Record, Seeded
from warmstart.seed import node_cache
from warmstart.steps import harvest as step
from warmstart.steps import spool as spool_step
from warmstart.steps.contract import Context, Outcome
from warmstart.store import manifest
from warmstart.store.bundles import Offer
from warmstart.store.client import StoreClient
from warmstart.store.layout import StoreFailed

pytestmark = pytest.mark.usefixtures("capable_host", "busy")

GONE = "slurm_load_jobs error: Invalid job id specified"


class Host(Node):
    """A node of whose jobs no hook has run: tests make what a prolog makes."""

    def __init__(self, base: Path, more: str = "") -> None:
        super().__init__(base, more)
        for path, mode in ((self.paths.state, 0o700), (self.paths.view, 0o711), (self.paths.stage, 0o700)):
            os.makedirs(path, mode=mode)
        self.workspace.mkdir()

    def run_of(self, job_id: int, boot_id: str = BOOT, run_id: str = "0a1b2c3d") -> Record:
        """Make what a prolog makes: record, view and workspace."""
        workspace = str(self.base / "workspace")
        record = a_record(job_id=job_id, view_id=job_id, boot_id=boot_id, run_id=run_id, workspace=workspace)
        os.makedirs(f"{self.paths.state}/{job_id}", mode=0o700, exist_ok=True)
        records.save(self.paths.state, record)
        self.trees(record)
        return record

    def trees(self, record: Record) -> None:
        """Make a run's view and workspace."""
        (Path(self.paths.view) / str(record.view_id)).mkdir()
        cache = Path(record.run_directory) / "cache"
        cache.mkdir(parents=True)
        Path(record.run_directory, record.mark).touch()
        (cache / "x").write_bytes(b"x")

    def left(self) -> list[str]:
        """Return what remains of jobs."""
        places = (self.paths.state, self.paths.view, self.paths.stage, str(self.workspace))
        return sorted(f"{os.path.basename(place)}/{name}" for place in places for name in os.listdir(place))

    def maintain(self, status: int = 0) -> None:
        """Run maintenance of the node."""
        assert self.command("maintain", "--node", "n1").exit_code == status


@pytest.fixture
def node(base: Path) -> Host:
    """Yield a node whose controller knows no jobs."""
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
    """Undo what `immutable` did."""
    subprocess.run(["/usr/bin/chattr", "-i", path], check=True)


def spooled(node: Host, *entries: str, scope: str = "user-1-a", limit: int = 1 << 30) -> list[Delivered]:
    """Spool as a harvest does if the store accepts nothing. Return what had to be dropped for it."""
    content = {entry: {f"{entry}.nbi": os.urandom(5000)} for entry in entries}
    stage = Path(tempfile.mkdtemp(dir=node.base))
    fd = node.packed(content)
    (stage / "bundle.sqsh").write_bytes(os.pread(fd, 1 << 20, 0))
    os.close(fd)
    item = Spooled(scope, "numba", "ns", node.draft(content), "7.0a1b2c3d.numba")
    return spool.add(node.paths.spool, str(stage), item, limit)


def test_the_spool_is_published_under_its_scope(node: Host) -> None:
    spooled(node, "a")
    spooled(node, "b", scope="site")
    spooled(node, "a")
    node.maintain()
    assert set(node.seen("user-1-a")) == {"a"}
    assert set(node.seen("site")) == {"b"}
    assert os.listdir(node.paths.spool) == []
    assert len(node.events("bundle.published")) == 2
    node.maintain()


def test_the_spool_has_a_limit_and_the_oldest_goes(node: Host) -> None:
    """Dropped bundles are named; one larger than the whole spool is not kept either."""
    spooled(node, "a")
    spooled(node, "b")
    size = sum(path.stat().st_size for path in Path(node.paths.spool).glob("*/*"))
    (dropped,) = spooled(node, "c", limit=size)
    assert dropped.name.endswith(".7.0a1b2c3d.numba")
    assert len(spooled(node, "d", limit=10)) == 3
    assert os.listdir(node.paths.spool) == []


def test_a_full_store_keeps_the_spool(node: Host) -> None:
    """What the store refuses stays and is reported; the next run, with space, publishes it."""
    with mounts.tmpfs(node.base / "full", size="64k") as small:
        os.chown(small, node.owner.uid, node.owner.gid)
        (small / "ballast").write_bytes(b"x" * 60_000)
        policy = Path(node.installation.policy)
        text = policy.read_text()
        policy.write_text(text.replace(str(node.store), str(small)))
        spooled(node, "a", "b", "c")
        node.maintain(status=1)
        assert len(os.listdir(node.paths.spool)) == 1
        assert [e["error"]["code"] for e in node.events("step.failed")] == ["store-full"]
        assert [e["outcome"] for e in node.events("hook.finished")] == ["failed"]
        policy.write_text(text)
    node.maintain()
    assert set(node.seen()) == {"a", "b", "c"}
    assert node.events("hook.finished")[-1]["outcome"] == "ok"


ENTRY = f"m_{'a' * 40}/m.f-1.py311"


def harvest(node: Host, monkeypatch: pytest.MonkeyPatch, store: str) -> Outcome:
    """Harvest a job's one new entry into a store. It needs no validator here."""
    monkeypatch.setattr(step._ProfileHarvest, "_judge", lambda _harvest, _fd, collected: (collected, ""))
    record = a_record(
        workspace=str(node.base / "workspace"), publish_scope="user-1-a", seeded={"numba": Seeded("ns", [])}
    )
    file = Path(record.run_directory, "cache", "numba", f"{ENTRY}.nbi")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(b"x" * 1000)
    policy = current_policy(node.installation, keep=True).policy
    policy = policy._replace(paths=policy.paths._replace(store=store))
    with StoreClient(node.owner, store, "n1-0a1b2c3d") as client:
        audit = Journal(node.paths.journal, {"hook": "epilog", "run_id": "0a1b2c3d", "node": "n1"})
        context = Context(policy, node.paths, record, audit, after(30), client)
        outcome = step.run(context, step.Options(30, 1 << 30))
        audit.finish()
    return outcome


def test_a_store_that_is_away_costs_no_harvest(node: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    outcome = harvest(node, monkeypatch, str(node.base / "not mounted"))
    assert [error.code for error in outcome.degraded] == ["store-failed"]
    assert len(os.listdir(node.paths.spool)) == 1
    assert os.listdir(node.paths.stage) == []
    node.maintain()
    assert set(node.seen("user-1-a")) == {ENTRY}
    (event,) = node.events("bundle.spooled")
    assert (event["entries"], event["error"]["code"]) == (1, "store-failed")


def test_what_a_store_that_is_away_leaves_late_is_deferred_too(node: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of a cache was collected in time and spooled; the other half is deferred."""
    whole = collect
    monkeypatch.setattr(step, "collect", lambda *args, **rules: whole(*args, **rules)._replace(truncated=OUT_OF_TIME))
    outcome = harvest(node, monkeypatch, str(node.base / "not mounted"))
    assert [error.code for error in outcome.degraded] == ["store-failed"]
    assert len(os.listdir(node.paths.spool)) == 1
    assert outcome.record["deferred"] == ["numba"]


def test_a_stage_without_room_takes_nothing(node: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stage shares its disk with the jobs' records: the harvest waits for room."""
    monkeypatch.setattr(space, "room", lambda _stage: 0)
    outcome = harvest(node, monkeypatch, str(node.store))
    assert (outcome.degraded, outcome.record["deferred"]) == ([], ["numba"])
    assert node.seen("user-1-a") == {}
    assert os.listdir(node.paths.stage) == []


def test_a_bug_in_one_part_keeps_nothing_else_from_being_done(node: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: object) -> None:
        raise KeyError("some job's entry")

    harvest(node, monkeypatch, str(node.base / "not mounted"))
    monkeypatch.setattr("warmstart.maintenance.node.Orphans.finish_runs", crash)
    monkeypatch.setattr("warmstart.errands.registry.drop_unknown", crash)
    node.maintain(status=1)
    crashes = node.events("hook.crashed")
    assert ["some job's entry" in event["traceback"] for event in crashes] == [True, True]
    assert set(node.seen("user-1-a")) == {ENTRY}


def test_the_next_epilog_publishes_the_spool(node: Host) -> None:
    spooled(node, "a")
    policy = current_policy(node.installation, keep=True).policy
    audit = Journal(node.paths.journal, {"hook": "epilog", "run_id": "0a1b2c3d", "node": "n1"})
    away = policy._replace(paths=policy.paths._replace(store=str(node.base / "not mounted")))
    with StoreClient(node.owner, away.paths.store, "n1-0a1b2c3d") as gone:
        context = Context(away, node.paths, a_record(), audit, after(30), gone)
        with pytest.raises(StoreFailed):
            spool_step.run(context, spool_step.Options(5))
        assert len(os.listdir(node.paths.spool)) == 1
    with StoreClient(node.owner, policy.paths.store, "n1-0a1b2c3d") as client:
        done = spool_step.run(context._replace(policy=policy, store=client), spool_step.Options(5))
    assert (done.state, done.detail) == ("changed", {"bundles": 1})
    assert set(node.seen()) == {"a"}
    audit.finish()


def test_a_damaged_bundle_leaves_the_spool(node: Host) -> None:
    spooled(node, "a")
    (bundle,) = Path(node.paths.spool).glob("*/bundle.sqsh")
    data = bundle.read_bytes()
    bundle.chmod(0o600)
    bundle.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    node.maintain()
    assert os.listdir(node.paths.spool) == []
    assert node.seen() == {}
    assert [e["reason"] for e in node.events("bundle.dropped")] == ["damaged"]


@pytest.mark.threat(15)
def test_one_that_can_not_be_read_does_not_hold_up_the_others(node: Host) -> None:
    """Jobs choose entry names, so a draft can be too long for a manifest: it is dropped."""
    spooled(node, "a")
    (draft,) = Path(node.paths.spool).glob("*/draft.json")
    draft.write_bytes(draft.read_bytes() + b" " * manifest.LARGEST)
    spooled(node, "b")
    node.maintain()
    assert (os.listdir(node.paths.spool), set(node.seen())) == ([], {"b"})
    assert [e["reason"] for e in node.events("bundle.dropped")] == ["damaged"]


def test_a_run_without_an_epilog_is_finished(node: Host) -> None:
    node.knows(1, "RUNNING")
    node.knows(2, "COMPLETED")
    node.knows(3, "COMPLETING")
    node.knows(5, "RUNNING")
    for job_id in (1, 2, 3, 4):
        node.run_of(job_id)
    node.run_of(5, boot_id="another boot")
    node.maintain()
    assert node.left() == ["state/1", "state/3", "view/1", "view/3", "workspace/1.00000000", "workspace/3.00000000"]
    assert {e["job_id"]: e["rebooted"] for e in node.events("run.abandoned")} == {2: False, 4: False, 5: True}


def test_a_silent_controller_means_nothing(node: Host) -> None:
    """No answer proves nothing: everything stays, except for runs older than this boot."""
    (node.base / "down").touch()
    node.run_of(1)
    node.run_of(2, boot_id="another boot")
    node.maintain()
    assert node.left() == ["state/1", "view/1", "workspace/1.00000000"]


def test_a_step_daemon_is_proof_enough(node: Host) -> None:
    node.run_of(99_999_999)
    program = shutil.copy("/bin/sleep", node.base / "slurmstepd")
    daemon = subprocess.Popen(["slurmstepd: [99999999.batch]", "60"], executable=program)
    try:
        while b"slurmstepd" not in Path(f"/proc/{daemon.pid}/cmdline").read_bytes():
            time.sleep(0.01)
        node.maintain()
        assert "state/99999999" in node.left()
    finally:
        daemon.kill()
        daemon.wait()
    node.maintain()
    assert node.left() == []


def test_a_job_whose_hook_is_at_work_is_left_alone(node: Host) -> None:
    node.run_of(4)
    before = node.left()
    with records.job_lock(node.paths.state, 4, after(1)):
        node.maintain()
        assert node.left() == before


@pytest.mark.threat(21)
def test_one_run_that_cannot_be_removed_costs_no_other(node: Host, immutable: Callable[[Path], None]) -> None:
    held = [Path(node.paths.view) / "4", Path(node.run_of(4).run_directory) / "cache"]
    node.run_of(5)
    for job_id in (6, 7):
        node.trees(a_record(job_id=job_id, view_id=job_id, workspace=str(node.base / "workspace")))
    held += [Path(node.paths.view) / "6", node.workspace / "6.00000000"]
    for path in held:
        immutable(path)
    node.maintain(status=1)
    assert node.left() == ["state/4", "view/4", "view/6", "workspace/.4.0a1b2c3d", "workspace/6.00000000"]
    held[1] = node.workspace / ".4.0a1b2c3d" / "cache"
    errors = [event["error"]["code"] for event in node.events("step.failed")]
    assert errors == ["workspace-busy"] * 4
    for path in held:
        mutable(path)
    node.maintain()
    assert node.left() == []


@pytest.mark.threat(21)
def test_one_run_that_meets_a_bug_costs_no_other(node: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    node.run_of(4)
    node.run_of(5)
    real = records.load

    def load(state: str, job_id: int) -> Record | None:
        if job_id == 4:
            raise RuntimeError("a bug")
        return real(state, job_id)

    monkeypatch.setattr(records, "load", load)
    node.maintain(status=1)
    assert node.left() == ["state/4", "view/4", "workspace/4.00000000"]
    assert "a bug" in node.events("hook.crashed")[0]["traceback"]


def test_trees_of_nobody_go_and_foreign_ones_stay(node: Host) -> None:
    """Stages, views and workspaces without a record go; foreign names are ignored."""
    record = a_record(job_id=8, view_id=8, workspace=str(node.base / "workspace"))
    node.trees(record)
    node.run_of(9)
    node.knows(9, "RUNNING")
    (node.workspace / "9.00000001/.of-9.99aa88bb").mkdir(parents=True)  # an earlier run, which was busy then
    (node.workspace / "somebody's").mkdir()
    (node.workspace / "import.0a1b2c3d.00").mkdir()
    Path(node.paths.stage, "8.0a1b2c3d.numba").mkdir()
    node.maintain()
    assert node.left() == ["state/9", "view/9", "workspace/9.00000000", "workspace/somebody's"]
    assert {event["kind"] for event in node.events("orphan.removed")} == {"stage", "view", "workspace"}


@pytest.mark.threat(43)
def test_what_hooks_left_to_be_removed_goes(node: Host) -> None:
    """Of which a process was killed that was at it; and what nothing names any more, as after a loss of the state."""
    named, nameless = a_record(job_id=71, workspace=str(node.base / "workspace")), "72.0a1b2c3d"
    for name in (named.run_name, nameless):
        (node.workspace / f".{name}" / "tmp/deep").mkdir(parents=True)
    deferred.defer(node.paths, REMOVALS, named, time.time())
    node.maintain()
    assert node.left() == []
    assert Errands(node.paths, REMOVALS).all() == []


def test_what_is_mounted_below_an_orphan_is_not_emptied(node: Host) -> None:
    node.trees(a_record(job_id=8, view_id=8, workspace=str(node.base / "workspace")))
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
    shas = {}
    for name, age in (("old", 5 * 86400), ("older", 9 * 86400), ("fresh", 60)):
        bundle = node.publish(one(name, os.urandom(8000)))
        os.utime(node.directory() / f"{bundle}.sqsh", (0, 0))
        offer = next(offer for offer in node.offers() if offer.bundle == bundle)
        shas[name] = fetch(node, offer)
        os.utime(shas[name], (now - age, now - age))
    node.maintain()
    assert [path.exists() for path in shas.values()] == [False, False, True]
    assert not list(Path(node.paths.bundles).glob("*.origin.json"))[1:]
    used = sorted(round((now - row["used"]) / 86400) for row in node.json("cache", "list"))
    assert used == [0, 5, 9]


def fetch(node: Host, offer: Offer) -> Path:
    """Return the node's copy of an offered bundle."""
    with node.client() as store:
        where = node.namespace()
        copy = node_cache.local_copy(
            node.paths.bundles, where, offer, store=store, most_bytes=1 << 30, deadline=after(20)
        )
        return Path(copy.path)


def test_journals_reach_the_log(node: Host) -> None:
    os.makedirs(node.paths.journal, mode=0o700)
    line = {"ts": 1.0, "event": "hook.started", "hook": "prolog", "run_id": "aa", "node": "n1", "job_id": 3}
    Path(node.paths.journal, "prolog-aa-999999.done").write_text(json.dumps(line) + "\n")
    node.maintain()
    assert [e["job_id"] for e in node.events("hook.started") if e["hook"] == "prolog"] == [3]
    assert os.listdir(node.paths.journal) == []


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
    (event,) = node.events("step.failed")
    assert (event["hook"], event["error"]["code"]) == ("maintain", "maintenance-busy")
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
    spooled(node, "a")
    deferred.defer(node.paths, HARVESTS, node.run_of(5), time.time())
    records.forget(node.paths.state, 5)
    (node.workspace / "import.0a1b2c3d.0123").mkdir(mode=0o710)
    (node.base / "audit" / "audit.jsonl").touch(mode=0o644)  # as a site may have it
    node.maintain()
    assert {os.path.basename(path).partition(".")[0] for path in locked} >= {"maintenance", "4", "spool", "harvests"}
    assert not [path for path in locked if as_user(64201, partial(os.open, path, os.O_RDONLY))]


@pytest.mark.threat(22)
def test_a_flock_on_the_nodes_directory_stops_nothing(node: Host) -> None:
    """Everybody can open it: the view, which jobs read, is below it."""
    with opened_dir(node.paths.root) as fd:
        fcntl.flock(fd, fcntl.LOCK_EX)
        node.maintain()


@pytest.mark.threat(22)
def test_the_last_success_is_known(node: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_cache, "prune", fails)
    node.maintain(status=1)
    assert not os.path.exists(node.paths.maintained)
    monkeypatch.undo()
    monkeypatch.setattr(run_end, "remove_tree", fails)
    node.run_of(4)
    node.maintain(status=1)
    os.unlink(node.paths.maintained)
    monkeypatch.undo()
    node.maintain()
    assert os.path.exists(node.paths.maintained)


def fails(*_: object) -> None:
    """Fail as a disk does."""
    raise OSError(errno.EIO, os.strerror(errno.EIO))


@pytest.mark.threat(22)
def test_one_node_that_cannot_be_maintained_costs_no_other_of_the_host(node: Host) -> None:
    other = node.installation.node("n0")
    os.makedirs(other.state, mode=0o700)
    os.chown(other.root, 64201, 64201)
    node.run_of(4)
    (n0, n1) = node.json("maintain")
    assert (n0["node"], n1["node"], n1["failed"]) == ("n0", "n1", [])
    assert "belongs to uid 64201" in n0["failed"][0]
    assert node.left() == []


def test_the_off_switch_stops_maintenance(node: Host) -> None:
    node.run_of(4)
    before = node.left()
    off = Path(node.installation.off_switch)
    off.touch()
    node.maintain()
    assert node.command("maintain", "--store").exit_code == 0
    assert node.left() == before
    assert not os.path.exists(node.store / "artifacts")
    off.unlink()
    node.maintain()
    assert node.left() == []


@pytest.mark.threat(22)
def test_the_store_is_maintained_by_one_host(node: Host) -> None:
    bundle = node.publish(one("a"))
    directory = node.directory()
    for name in (".tmp-n9-dead", "20200101T000000.000000Z-0000000000000000.sqsh"):
        (directory / name).write_bytes(b"half")
    assert node.json("maintain", "--store")["swept"] == 0
    real = time.time
    time.time = lambda: real() + 100_000
    try:
        assert node.json("maintain", "--store")["swept"] == 2
    finally:
        time.time = real
    assert sorted(path.name for path in directory.glob("*Z-*")) == [f"{bundle}.json", f"{bundle}.sqsh"]
    stamp = node.store / "artifacts" / "maintained"
    stamp.unlink()
    with node.client() as other:
        assert other.lock(after(5))
        assert node.command("maintain", "--store").exit_code == 1
    (event,) = node.events("step.failed")
    assert event["error"]["code"] == "maintenance-busy"
    assert not stamp.exists()
    assert node.command("maintain", "--store").exit_code == 0
    assert stamp.stat().st_uid == node.owner.uid
