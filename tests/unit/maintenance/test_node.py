"""Maintenance of one node: what hooks left for later, and what those that died left; no part keeps another back."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import NoReturn

import pytest

from tests.lib.cache_files import numba_files
from tests.lib.node import NODE, SCOPE, Node
from tests.lib.runs import a_run, changed
from warmstart.caches.store.gc import BOARD_SECONDS, sweep_top
from warmstart.ending import waiting
from warmstart.ending.waiting import ENDINGS
from warmstart.host.deadline import Deadline, after
from warmstart.maintenance.node import Report, maintain_node
from warmstart.queue import Queue
from warmstart.run import state as runs
from warmstart.run.state import Run, Seeded
from warmstart.seed import eviction
from warmstart.slurm import commands
from warmstart.slurm.facts import Access, JobFacts
from warmstart.steps import harvest
from warmstart.steps.contract import Context
from warmstart.store import barrier
from warmstart.store.barrier import Topic
from warmstart.store.layout import StoreFailed


class Host:
    """A node whose controller says which jobs are over."""

    def __init__(self, site: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self.site = site
        self.over: dict[int, bool | None] = {}
        self.asked: list[int] = []
        monkeypatch.setattr(commands, "job", self._job)
        for path in (site.paths.root, site.paths.state, site.paths.view):
            os.makedirs(path, mode=0o755)
        self.workspaces = site.base / "workspace"
        self.workspaces.mkdir(parents=True)

    def _job(self, _access: Access, job_id: int, _deadline: Deadline) -> JobFacts:
        self.asked.append(job_id)
        over = self.over.get(job_id, False)
        if over is None:
            raise ValueError("squeue: Unable to contact slurm controller")
        return JobFacts(job_id, "COMPLETED" if over else "COMPLETING", "", "", 0)

    def run(self, job_id: int = 7, **changes: object) -> Run:
        """Have a run of a job on the node, with a function that numba compiled."""
        record = a_run(
            job_id=job_id, view_id=job_id, workspace=str(self.site.base / "workspace"),
            publish_scope=SCOPE, seeded={"numba": Seeded("ns", [])}, path="/c",
        )  # fmt: skip
        record = changed(record, **changes)
        for name, content in numba_files().items():
            path = Path(record.directory, "cache/numba", name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        Path(record.directory, record.mark).touch()
        return record

    def recorded(self, record: Run) -> None:
        os.makedirs(f"{self.site.paths.state}/{record.job_id}", mode=0o700, exist_ok=True)
        runs.save(self.site.paths.state, record)

    def maintain(self) -> Report:
        return maintain_node(self.site.installation, NODE, "")

    def left(self) -> list[str]:
        return sorted(os.listdir(self.workspaces))


@pytest.fixture
def node(node: Node, monkeypatch: pytest.MonkeyPatch) -> Host:
    """Give a node without anything to do, on a disk with space."""
    monkeypatch.setattr(waiting, "is_short_of_space", lambda _workspace: False)
    return Host(node, monkeypatch)


def test_a_node_without_work(node: Host) -> None:
    assert node.maintain() == Report(NODE)
    assert node.asked == []


def test_a_run_without_an_epilog_is_finished(node: Host) -> None:
    """When its job is over for sure: harvested and removed as its epilog would have done it."""
    record = node.run()
    node.recorded(record)
    for answer in (False, None):
        node.over[7] = answer
        assert (node.maintain().finished, node.left()) == (0, [record.place])
    node.over[7] = True
    assert (node.maintain().finished, node.left()) == (1, [])
    assert len(node.site.offered()) == 1
    assert len(node.site.events("run.abandoned")) == 1


@pytest.mark.report
def test_the_board_of_a_long_job_stays(node: Host) -> None:
    """Its steps may meet there after weeks of silence: each maintenance of the node that began a topic says so."""
    store = str(node.site.store)
    kept, other = "c.7.0", "c.8.0"
    topics = [Topic(run, "caches.key.", "n1") for run in (kept, other, "c.7.1")]
    for topic in topics:
        barrier.say(store, topic, "proposal", "{}", True)
    began = max(path.stat().st_ctime for path in node.site.store.glob("runs/*"))
    node.recorded(node.run(topics=["c.7.0/caches", "c.7.1/caches", "c.9.0/gone"]))
    while time.time() < began + 0.1:
        time.sleep(0.01)
    node.maintain()
    assert sweep_top(store, began + BOARD_SECONDS + 0.05) == [f"runs/{other}"]
    assert barrier.hear(store, topics[0], "proposal") == "{}"
    assert os.listdir(node.site.store / "runs" / "c.7.1") == ["caches.key.proposal"]


def test_what_a_boot_left_goes_although_the_job_runs_elsewhere(node: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing names it any more, and nobody is asked; a job with a step daemon here keeps what it has."""
    for job_id in (7, 8):
        node.run(job_id)
    monkeypatch.setattr(commands, "with_daemons", lambda: frozenset({8}))
    assert (node.maintain().removed, node.left()) == (1, ["8.00000000"])
    assert node.asked == []


def test_a_job_with_a_step_daemon_runs(node: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commands, "with_daemons", lambda: frozenset({7}))
    node.recorded(node.run())
    node.over[7] = True
    assert node.maintain().finished == 0
    assert node.asked == []


def test_a_controller_that_is_silent_is_asked_once(node: Host) -> None:
    for job_id in (7, 8, 9):
        node.recorded(node.run(job_id))
        node.over[job_id] = None
    assert node.maintain().finished == 0
    assert len(node.asked) == 1


def test_trees_that_nothing_names_go(node: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stages, workspaces and views of jobs that are over; others of that name and of running jobs stay.

    A component of a heterogeneous job has the leader's id in its directory's name, and its own in the mark.
    """
    node.over[8] = True
    monkeypatch.setattr(commands, "with_daemons", lambda: frozenset({9}))
    for directory, names in (
        (node.site.paths.stage, ("8.0a1b2c3d.numba", "9.0a1b2c3d.numba", "other")),
        (str(node.workspaces), ("8.00000000", "9.00000000", ".8.0a1b2c3d", ".9.0a1b2c3d", "import.x")),
        (str(node.workspaces), ("9.00000001/.of-8.0a1b2c3d", "8.00000001/.of-9.0a1b2c3d")),
        (node.site.paths.view, ("8", ".new-8.0a1b2c3d", "9", "lost+found")),
    ):
        for name in names:
            os.makedirs(f"{directory}/{name}", mode=0o755)
    assert node.maintain().removed == 6
    assert sorted(os.listdir(node.site.paths.stage)) == ["9.0a1b2c3d.numba", "other"]
    assert node.left() == [".9.0a1b2c3d", "8.00000001", "9.00000000"]
    assert sorted(os.listdir(node.site.paths.view)) == ["9", "lost+found"]


def test_what_the_jobs_state_names_is_no_orphan_and_what_an_earlier_run_left_is(
    node: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although a step of the job runs here. A state that cannot be read may name it."""
    monkeypatch.setattr(commands, "with_daemons", lambda: frozenset({7}))
    run = node.run()
    node.recorded(run)
    assert (node.maintain().removed, node.left()) == (0, [run.place])
    node.recorded(run._replace(run_id="ffffffff", restarts=1))
    state = Path(node.site.paths.state, "7", runs.NAME)
    written = state.read_bytes()
    state.write_bytes(b"{")
    assert (node.maintain().removed, node.left()) == (0, [run.place])
    state.write_bytes(written)
    with runs.job_lock(node.site.paths.state, 7, after(60)):
        assert node.maintain().removed == 0
    assert (node.maintain().removed, node.left()) == (1, [])


@pytest.mark.parametrize("case", ["done", "old", "fails"])
def test_runs_that_wait_are_ended(node: Host, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """Whenever their next attempt would begin. What cannot be harvested any more is told; what fails is tried again."""
    run = node.run(left=["numba"])
    queue = Queue(node.site.paths, ENDINGS)
    item = waiting.leave(queue, run, is_done=False)
    if case == "old":
        waiting.put(queue, item, run, 0, is_done=False)
    if case == "fails":

        def fail(*_: object, **__: object) -> None:
            raise StoreFailed(what="harvest", problem="x")

        monkeypatch.setattr(harvest, "harvest", fail)
    report = node.maintain()
    assert (report.ended, bool(report.failed)) == (int(case != "fails"), case == "fails")
    assert len(node.site.offered()) == (case == "done")
    assert [item.key for item in queue.all()] == ([run.name] if case == "fails" else [])
    reasons = {"old": waiting.TOO_OLD}
    dropped = [event["reason"] for event in node.site.events("harvest.dropped")]
    assert dropped == ([reasons[case]] if case in reasons else [])
    told = [event for name in ("harvest.dropped", "harvest.finished") for event in node.site.events(name)]
    assert len(told) == (case != "fails")
    assert [(event["job_id"], event["done_by"]) for event in told] == [(7, {"hook": "maintain"})] * len(told)


@pytest.mark.threat(30)
def test_no_users_runs_keep_other_work_waiting(node: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    node.over[20] = True
    orphan = node.run(20)
    for number in (1, 2):
        waiting.leave(Queue(node.site.paths, ENDINGS), node.run(number, left=["numba"]), is_done=False)
    tried = []

    def fails(context: Context, *_: object) -> NoReturn:
        tried.append(context.run.job_id)
        assert not os.path.exists(orphan.directory)
        raise ZeroDivisionError

    monkeypatch.setattr(harvest, "harvest", fails)
    report = node.maintain()
    assert (tried, report.ended, report.removed, len(report.failed)) == ([1, 2], 0, 1, 2)


@pytest.mark.parametrize("bug", [False, True])
def test_a_part_that_fails_keeps_no_other(node: Host, monkeypatch: pytest.MonkeyPatch, bug: bool) -> None:
    node.recorded(node.run())
    node.over[7] = True

    def fail(*_: object) -> None:
        raise ZeroDivisionError if bug else OSError(5, "Input/output error")

    monkeypatch.setattr(eviction, "prune", fail)
    report = node.maintain()
    assert (report.finished, len(report.failed)) == (1, 1)
    assert ("a bug" if bug else "copies: Input/output error") in report.failed[0]
    assert ("traceback" in node.site.result("maintain")) is bug
    assert [event["code"] for event in node.site.failures()] == ["maintenance-failed"]


def test_a_run_of_another_release_is_told_and_stays(node: Host) -> None:
    """Its job is over; that release finishes the run when it is in force again."""
    os.makedirs(f"{node.site.paths.state}/7", mode=0o700)
    record = Path(node.site.paths.state, "7", "run.json")
    record.write_text('{"format": 2}')
    node.over[7] = True
    (failure,) = node.maintain().failed
    assert "has format 2, known is 1" in failure
    assert record.exists()


def test_a_job_whose_hook_is_at_work_is_left(node: Host) -> None:
    node.recorded(node.run())
    node.over[7] = True
    with runs.job_lock(node.site.paths.state, 7, after(60)):
        assert node.maintain().finished == 0
    assert node.maintain().finished == 1
