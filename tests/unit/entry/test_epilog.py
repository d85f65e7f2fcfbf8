"""A whole epilog, as whoever runs the tests: what the job compiled reaches the store, and nothing stays on the node."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tests.lib.cache_files import numba_files
from tests.lib.node import SCOPE, Node
from tests.lib.privileges import make_removable
from warmstart.cli import own
from warmstart.ending import waiting
from warmstart.entry import epilog, prolog
from warmstart.host import detached
from warmstart.host.files import FileSystemBroken
from warmstart.queue import Queue
from warmstart.run import state as runs
from warmstart.run.state import Run
from warmstart.slurm import commands


@pytest.fixture
def run(node: Node) -> Run:
    """Give the run of a job that has compiled something."""
    assert prolog.main(node.installation.prefix) == 0
    found = runs.load(node.paths.state, 7)
    assert found
    for name, content in numba_files().items():
        path = Path(found.directory, "cache/numba", name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    make_removable(f"{node.paths.view}/7")
    return found


@pytest.fixture(autouse=True)
def roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a disk with space, and start no program."""
    monkeypatch.setattr(waiting, "is_short_of_space", lambda _workspace: False)
    monkeypatch.setattr(detached, "start", lambda *_, **__: None)


def left(site: Node) -> list[str]:
    return [*os.listdir(site.base / "workspace"), *os.listdir(site.paths.view)]


def test_what_the_job_compiled_is_there_for_the_next(node: Node, run: Run) -> None:
    """Whatever the environment says of the job; its run's state knows."""
    node.environ(SLURM_JOB_USER="ws-eve", SLURM_JOB_UID="12345", SLURM_JOB_PARTITION="other")
    assert epilog.main(node.installation.prefix) == 0
    assert len(node.offered(SCOPE, run.own.seeded["numba"].namespace)) == 1
    assert (left(node), runs.load(node.paths.state, 7)) == ([], None)
    assert {event["hook"] for event in node.events("hook.finished")} == {"prolog", "epilog"}


def test_slurm_may_run_it_twice(node: Node, run: Run) -> None:
    """The second one has no run, which is normal."""
    for _ in range(2):
        assert epilog.main(node.installation.prefix) == 0
    ends = [event["outcome"] for event in node.events("hook.finished") if event["hook"] == "epilog"]
    assert ends == ["ok"] * 2


def test_a_store_that_is_away_keeps_the_work_on_the_node(node: Node, run: Run) -> None:
    shutil.rmtree(node.store)
    assert epilog.main(node.installation.prefix) == 0
    assert (left(node), runs.load(node.paths.state, 7)) == ([run.going], None)
    assert [item.key for item in Queue(node.paths, waiting.ENDINGS).all()] == [run.name]
    assert [remark.partition(" for ")[0] for remark in node.remarks(7)] == [
        "numba: the epilog had no time, no space or no store",
        ": the report",
    ]


@pytest.mark.report
def test_the_audit_has_the_runs_user(node: Node, run: Run) -> None:
    """With nss_slurm slurmd does not know the user when the job is over, and says `nobody`."""
    node.environ(SLURM_JOB_USER="nobody")
    assert epilog.main(node.installation.prefix) == 0
    (ended,) = [event for event in node.events("hook.finished") if event["hook"] == "epilog"]
    assert (ended["user"], ended["uid"]) == (run.user, run.uid)


def test_a_harvest_that_is_lost_is_no_success(node: Node, run: Run) -> None:
    shutil.rmtree(run.directory)
    assert epilog.main(node.installation.prefix) == 0
    outcomes = {event["hook"]: event["outcome"] for event in node.events("hook.finished")}
    assert outcomes == {"prolog": "ok", "epilog": "failed"}
    assert [failure["step"] for failure in node.failures()] == ["harvest"]
    assert left(node) == []


def test_only_a_broken_node_drains(node: Node, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise FileSystemBroken(path="/var", problem="read-only")

    monkeypatch.setattr(runs, "forget", broken)
    monkeypatch.setattr(commands, "drain_node", lambda *_: True)
    assert epilog.main(node.installation.prefix) == 1
    assert len(node.offered(SCOPE, run.own.seeded["numba"].namespace)) == 1
    assert len(node.events("node.drained")) == 1


@pytest.mark.parametrize(
    ("codes", "changes", "died"),
    [
        (("0", "0"), {}, False),
        (("768", "0"), {}, True),  # exit 3
        (("9", "0"), {}, True),
        (("0", "256"), {}, True),  # a step
        (("0", "11"), {}, True),
        (("1", "0"), {}, False),  # another node failed
        (("125", "0"), {}, False),  # out of memory
        (("0", "253"), {}, False),
        (("256", "0"), {"SLURM_JOB_STDIN": None}, False),  # salloc, srun
        (("0", "0"), {"SLURM_JOB_RESTART_COUNT": "1"}, False),  # requeued
        ((None, None), {}, False),
        (("x", "0"), {}, False),
    ],
)
def test_whether_a_job_has_died(
    run: Run, codes: tuple[str | None, str | None], changes: dict[str, str | None], died: bool
) -> None:
    """As Slurm's own codes say, of which some say nothing of what the job did."""
    batch = {"SLURM_JOB_STDIN": "/dev/null", "SLURM_JOB_RESTART_COUNT": "0"}
    environ = {"SLURM_JOB_EXIT_CODE": codes[0], "SLURM_JOB_DERIVED_EC": codes[1], **batch, **changes}
    assert epilog.has_died({name: value for name, value in environ.items() if value is not None}, run) is died


@pytest.mark.usefixtures("run")
def test_an_early_death_after_a_warm_start_is_explained(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = {"SLURM_JOB_EXIT_CODE": "256", "SLURM_JOB_DERIVED_EC": "0", "SLURM_JOB_STDIN": "/dev/null"}
    told = {}
    for job in ("7", "8"):
        node.environ(SLURM_JOB_ID=job)
        assert job == "7" or prolog.main(node.installation.prefix) == 0
        node.environ(SLURM_JOB_ID=job, SLURM_JOB_RESTART_COUNT="0", **ended)
        assert epilog.main(node.installation.prefix) == 0
        for has_only_own in (False, True):
            monkeypatch.setattr(own, "has_only_own", lambda _, is_so=has_only_own: is_so)
            told[job, has_only_own] = "the job began warm and died after" in node.command("explain", job).stdout
    assert told == {("7", False): False, ("7", True): False, ("8", False): True, ("8", True): True}
