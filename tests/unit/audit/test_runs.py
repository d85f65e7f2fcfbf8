"""Events become runs: whole ones, those that were killed, and no more at a time than there is memory for."""

from __future__ import annotations

from typing import Any

import pytest

from warmstart.audit import runs as module
from warmstart.audit.line import Line
from warmstart.audit.runs import Harvest, ImageUse, Remark, Run, runs

RUN: Line = {"hook": "prolog", "run_id": "0a", "node": "n1", "cluster": "c", "job_id": 7, "user": "alice"}


def event(name: str, **fields: Any) -> Line:  # noqa: ANN401 - an event's own
    return {**RUN, "ts": "2026-01-31T09:30:00.250Z", "event": name, **fields}


def one(*lines: Line) -> Run:
    (found,) = runs(lines)
    return found


def test_a_prolog_from_its_start_to_its_end() -> None:
    found = one(
        event("hook.started", partition="gpu", account="ml"),
        event("job.planned", asked={"profiles": ["triton"]}, rules=["all"], profiles=["numba"], head=True),
        event("image.reused", image="r/a:1", digest="sha256:ab", bytes=70, waited_ms=0, duration_ms=3, step="image"),
        event("cache.seeded", profile="numba", way="overlay", entries=12, bundles=2, scopes=["site"], duration_ms=20),
        event("step.finished", step="seed", duration_ms=30, warm=["numba"], cold={"triton": "nothing-published"}),
        event("step.finished", step="x", duration_ms=0, told={"address": "n1", "numbers": [20017, 1]}),
        event("hook.finished", outcome="ok", status=0, duration_ms=40),
    )
    assert (found.hook, found.job, found.user, found.partition, found.head) == ("prolog", 7, "alice", "gpu", True)
    assert (found.asked, found.rules, found.granted_profiles) == ({"profiles": ["triton"]}, ["all"], ["numba"])
    assert found.images == [ImageUse("r/a:1", "sha256:ab", "reused", 70, 0.003, 0.0)]
    assert (found.warm, found.cold) == (["numba"], {"triton": "nothing-published"})
    assert found.steps == {"seed": 0.03, "x": 0.0}
    assert (found.seedings["numba"].entries, found.told) == (12, [("x", "address", "n1"), ("x", "numbers", "20017, 1")])
    assert (found.outcome, found.seconds) == ("ok", 0.04)


def test_an_epilog() -> None:
    found = one(
        event("cache.harvested", profile="numba", entries=3, known=12, changed=1, bytes=20, duration_ms=310),
        event("entry.rejected", profile="numba", reasons={"smaller": 2}),
        event("entry.rejected", profile="numba", reasons={"smaller": 1, "json-malformed": 1}),
        event("bundle.published", size=10),
        event("harvest.deferred", profiles=["triton"]),
    )
    assert found.harvests == [Harvest("numba", 3, 12, 1, 20, 0.31)]
    assert (found.rejected, found.published) == ({"numba": {"smaller": 3, "json-malformed": 1}}, {"": 10})
    assert found.remarks == [Remark("harvest.deferred", "triton", "")]
    assert found.outcome == ""


@pytest.mark.parametrize(
    ("name", "degree"), [("job.refused", "refused"), ("node.drained", "drained"), ("step.failed", "failed")]
)
def test_failures(name: str, degree: str) -> None:
    error = {"kind": "user", "code": "x", "reason": "why", "hint": "do"}
    found = one(event(name, step="image", error=error), event("hook.crashed"), event("hook.finished", outcome="failed"))
    assert (*found.failures[0],) == (degree, "image", "x", "why", "do")
    assert found.outcome == "crashed"


def test_what_a_node_hands_in() -> None:
    """It is published by another process, which says what it did without; of a whole job nothing is to be said."""
    theirs = {"hook": "background", "done_by": {"hook": "background"}}
    handed = one(
        event("bundle.handed-in", profile="jax", entries=3), event("bundle.handed-in", profile="jax", entries=1)
    )
    assert handed.handed_in == {"jax": 4}
    (merged,) = runs(
        (
            event("bundle.published", size=30, **theirs, run="2001.c.7.0", profile="jax", entries=3),
            event("bundle.published", size=30, **theirs, run="2001.c.7.0-1", profile="jax", entries=3, running=True),
            event("harvest.merged", **theirs, missing=[]),
            event("harvest.merged", **theirs, missing=["n2", "n3"]),
        )
    )
    of_end = Harvest("jax", 3, 0, 0, 30, 0.0)
    assert merged.harvests == [of_end, of_end._replace(running=True)]
    assert merged.remarks == [Remark("harvest.merged", "n2, n3", "")]


def test_work_for_other_jobs_is_theirs() -> None:
    """An epilog delivers a bundle of another job: both runs have their job, and each its failures."""
    theirs = {"job_id": 6, "user": "bob", "hook": "epilog", "done_by": {"hook": "epilog", "job_id": 7, "user": "alice"}}
    own, other, lost = runs(
        (
            event("hook.started", hook="epilog"),
            event("bundle.published", size=30, **theirs, spooled="1.2.6.0a.numba", profile="numba", entries=3),
            event("bundle.dropped", **theirs | {"job_id": 5}, reason="damaged"),
            event("hook.finished", hook="epilog", outcome="failed", duration_ms=40),
        )
    )
    assert (lost.job, lost.remarks) == (5, [Remark("bundle.dropped", "", "damaged")])
    assert (own.job, own.user, own.outcome, own.published, own.done_by) == (7, "alice", "failed", {}, "")
    assert (other.job, other.user, other.outcome, other.published, other.done_by) == (
        6,
        "bob",
        "",
        {"numba": 30},
        "epilog of job 7",
    )
    assert other.harvests == [Harvest("numba", 3, 0, 0, 30, 0.0)]


def test_a_killed_hook_has_ended() -> None:
    """Its job's epilog comes after it, as after any prolog; why it crashed is kept, of a bug nothing is said."""
    killed = (event("hook.started"), event("hook.crashed"), event("hook.crashed", reason="killed"))
    epilog = event("hook.finished", hook="epilog", run_id="0b", outcome="ok")
    first, second = runs((*killed, epilog))
    assert (first.hook, first.crashes, first.ended, second.hook) == ("prolog", ["", "killed"], "", "epilog")
    assert first.counts == {"hook.started": 1, "hook.crashed": 2}


def test_unfinished_runs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_OPEN", 3)
    lines = [{**event("hook.started"), "run_id": str(number)} for number in range(10)]
    assert [run.run_id for run in runs(lines)] == [str(number) for number in range(10)]


@pytest.mark.parametrize(
    ("fields", "excluded"),
    [
        ({}, "it is only observed (mode: observe)"),
        ({"excluded": "no rule matches it on this node"}, "no rule matches it on this node"),
        ({"refused": {"reason": "no such"}}, "it is only observed (mode: observe), and would be refused: no such"),
    ],
)
def test_an_observed_job_is_explained_and_no_start(fields: dict[str, object], excluded: str) -> None:
    """`warmstart explain` says why it has nothing; the report counts only jobs that warmstart did something for."""
    run = one(event("job.observed", asked={"fresh": True}, head=True, **fields), event("hook.finished", outcome="ok"))
    assert (run.is_planned, run.head, run.asked, run.excluded) == (True, False, {"fresh": True}, excluded)
