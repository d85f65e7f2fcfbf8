"""When a prolog that waits learns that its job is over: how often it asks, whom, and what counts as an answer."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

import pytest

from tests.lib.runs import a_policy, a_run
from warmstart.host.deadline import Deadline
from warmstart.images.imports.job_end import JobEnd
from warmstart.slurm.facts import JobFacts
from warmstart.slurm.slurmctld import LookUpFailed, Slurmctld
from warmstart.store.client import StoreClient

NODES = "n[1-64]"
Answers = Callable[[], JobFacts | None]


class Clock:
    """The time of all processes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = float(round(time.monotonic()))  # half seconds are exact, however long the host is up
        monkeypatch.setattr(time, "monotonic", lambda: self.now)


class Controller:
    """Stands in for slurmctld, and counts who asks."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.state = "RUNNING"
        self.answer: Answers = lambda: JobFacts(7, self.state, "", "", 0)
        self.asked = 0
        monkeypatch.setattr(Slurmctld, "job", self._job)

    def _job(self, job_id: int, _deadline: Deadline) -> JobFacts | None:
        assert job_id == 7
        self.asked += 1
        return self.answer()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


@pytest.fixture
def controller(monkeypatch: pytest.MonkeyPatch) -> Controller:
    return Controller(monkeypatch)


@pytest.fixture
def store(tmp_path: Path) -> StoreClient:
    (tmp_path / "store").mkdir()
    policy = a_policy(tmp_path)
    return StoreClient(policy.store_user, policy.paths.store, "n1-test")


def watch(store: StoreClient, node: int = 1, nodelist: str = NODES) -> JobEnd:
    return JobEnd(a_run(node=f"n{node}", nodelist=nodelist), store, "/nowhere/scontrol")


def seconds_until_known(watches: list[JobEnd], clock: Clock, most: float) -> float:
    """Look on all nodes twice a second, as waits do, until all know; return when that was, `most` if never."""
    began, waiting = clock.now, list(watches)
    while waiting and clock.now - began < most:
        clock.now += 0.5
        waiting = [watch for watch in waiting if not watch.is_known(Deadline(clock.now + 60))]
    return clock.now - began


def test_the_second_node_asks_where_the_head_node_may_be_gone(
    store: StoreClient, clock: Clock, controller: Controller
) -> None:
    run = a_run(node="n2", nodelist=NODES)
    stand_in = JobEnd(run, store, "/nowhere/scontrol", stands_in=True)
    assert seconds_until_known([stand_in], clock, 240) == 240
    assert 4 <= controller.asked <= 12
    controller.state = "COMPLETING"
    assert seconds_until_known([stand_in, watch(store, 3), watch(store, 64)], clock, 240) <= 70


@pytest.mark.threat(44)
def test_slurmctld_is_asked_as_often_for_64_nodes_as_for_one(
    store: StoreClient, clock: Clock, controller: Controller
) -> None:
    for nodelist, count in ((NODES, 64), ("", 1)):
        controller.asked = 0
        watches = [watch(store, number, nodelist) for number in range(1, count + 1)]
        assert seconds_until_known(watches, clock, 240) == 240
        print(f"{count} nodes: {controller.asked} questions in 240 s")  # noqa: T201
        assert 5 <= controller.asked <= 16


@pytest.mark.threat(44)
@pytest.mark.parametrize("state", ["COMPLETING", "CANCELLED", "NODE_FAIL"])
def test_all_nodes_hear_of_the_end(store: StoreClient, clock: Clock, controller: Controller, state: str) -> None:
    watches = [watch(store, number) for number in range(1, 9)]
    assert seconds_until_known(watches, clock, 100) == 100
    controller.state = state
    asked = controller.asked
    assert seconds_until_known(watches, clock, 60) < 60
    assert controller.asked <= asked + 2


def silent() -> NoReturn:
    raise LookUpFailed(what="job 7", problem="Connection refused")


def in_state(state: str) -> Answers:
    return lambda: JobFacts(7, state, "", "", 0)


ANSWERS = {
    **{state: in_state(state) for state in ("PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "SOMETHING_NEW")},
    "no such job, as where slurmctld has lost its state": lambda: None,
    "no answer": silent,
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_no_other_answer_ends_a_wait(store: StoreClient, clock: Clock, controller: Controller, answer: str) -> None:
    """The questions go on, no faster."""
    controller.answer = ANSWERS[answer]
    assert seconds_until_known([watch(store), watch(store, 2)], clock, 240) == 240
    assert 5 <= controller.asked <= 16
