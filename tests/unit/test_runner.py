"""By whose fault a failure is decides what becomes of the job."""

from pathlib import Path
from typing import Any

import pytest

from tests.lib.policy_site import defaults
from tests.lib.runs import a_policy, a_run, result
from warmstart.errors import NodeError, ResourceError, StoreError, UserError, WarmstartError
from warmstart.run import state as runs
from warmstart.runner import Refused, Step, run_prolog
from warmstart.steps.contract import Context, Outcome

ON_ERROR = defaults().on_error


class OfUser(UserError):
    """A sample."""

    code, template = "of-user", "your fault"


class OfNode(NodeError):
    """A sample."""

    code, template = "of-node", "the node's fault"


class OfStore(StoreError):
    """A sample."""

    code, template = "of-store", "the store's fault"


class OfResource(ResourceError):
    """A sample."""

    code, template = "of-resource", "no room"


def step(name: str, ran: list[str], failure: WarmstartError | None = None, **outcome: Any) -> Step:  # noqa: ANN401
    """Return a step that notes that it ran, and fails or succeeds."""

    def run(context: Context) -> Outcome:
        ran.append(name)
        if failure is not None:
            raise failure
        return Outcome(**outcome)

    return Step(name, run)


@pytest.mark.parametrize("error", [OfStore(), OfResource()])
def test_what_is_nobodys_fault_here_degrades(context: Context, error: WarmstartError) -> None:
    ran: list[str] = []
    prepared = run_prolog(context, [step("seed", ran, error), step("environment", ran)])
    assert ran == ["seed", "environment"]
    assert prepared.notices == [f"warmstart: {error}; the job runs without it"]


@pytest.mark.parametrize("error", [OfUser(), OfNode()])
def test_verdicts_and_drains_stop_a_prolog(context: Context, error: WarmstartError) -> None:
    ran: list[str] = []
    with pytest.raises(type(error)):
        run_prolog(context, [step("workspace", ran, error), step("seed", ran)])
    assert ran == ["workspace"]


def test_a_missing_image_is_a_verdict_unless_the_policy_says_otherwise(context: Context, tmp_path: Path) -> None:
    """Or every node of the job would import it on its own."""
    with pytest.raises(Refused, match="the store's fault"):
        run_prolog(context, [step("image", [], OfStore())])
    lenient = a_policy(tmp_path, on_error=ON_ERROR._replace(image="run-without"))
    assert run_prolog(context._replace(policy=lenient), [step("image", [], OfStore())]).notices


def test_a_job_is_told_once(context: Context) -> None:
    both = step("seed", [], degraded=[OfStore(), OfStore(), OfResource()])
    assert [notice.partition(";")[0] for notice in run_prolog(context, [both]).notices] == [
        "warmstart: the store's fault",
        "warmstart: no room",
    ]


def test_steps_hand_on_what_they_found_out(context: Context) -> None:
    seen: list[runs.Run | None] = []

    def look(context: Context) -> Outcome:
        seen.append(runs.load(context.paths.state, 7))
        return Outcome()

    first = step("image", [], run=a_run(image="sha256:00"), environment={"WARMSTART_IMAGE": "/i"})
    prepared = run_prolog(context, [first, Step("seed", look)])
    assert seen == [prepared.context.run]
    assert prepared.context.run.own.image == "sha256:00"
    assert prepared.context.run.environment == {"WARMSTART_IMAGE": "/i"}


def test_steps_for_a_workspace_are_left_out_where_there_is_none(context: Context) -> None:
    ran: list[str] = []
    run_prolog(context, [step("workspace", ran, OfResource()), step("seed", ran)._replace(in_workspace=True)])
    assert ran == ["workspace"]


def test_the_last_line_says_what_steps_took_told_and_lacked(context: Context) -> None:
    partly = step("seed", [], detail={"entries": 3}, degraded=[OfStore()])
    run_prolog(context, [partly, step("tree", [], OfResource()), step("port", [], detail={"ports": [1]})])
    line = result(context)
    assert line["told"] == {"seed": {"entries": 3}, "port": {"ports": [1]}}
    assert [(failure["step"], failure["code"]) for failure in line["failures"]] == [
        ("seed", "of-store"),
        ("tree", "of-resource"),
    ]
    assert [*line["steps"]] == ["seed", "tree", "port"]
