"""All nodes of a job learn one address and port from its head node, or none does."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.lib.runs import a_context, a_job, a_policy
from tests.lib.wings.ports.values import a_rendezvous
from warmstart import plan
from warmstart.ending import release
from warmstart.errors import WarmstartError
from warmstart.job import Job
from warmstart.paths import NodePaths
from warmstart.plan import NotOffered
from warmstart.policy.keys import Policy
from warmstart.policy.match import Grant
from warmstart.run import state as runs
from warmstart.runner import Refused, Step
from warmstart.steps.contract import Context
from warmstart.store.barrier import DIRECTORY, Barrier, HeadSilent
from warmstart.store.layout import StoreFailed
from warmstart.wings.ports import ledger as ports
from warmstart.wings.ports import step as wing_step

RULE = a_rendezvous(shared_nodes=True, wait=60)
TWO = a_job(nodelist="n[1-2]")
OTHER = TWO._replace(node="n2")
FOR_US = {"cluster": "test", "uid": TWO.uid, "nodelist": "n[1-2]"}
HERE = os.cpu_count() or 1


def grant(**rule: object) -> Grant:
    own = {wing_step.KEY: [json.loads(json.dumps(RULE._replace(**rule)._asdict()))]}  # type: ignore[arg-type]
    return Grant([], [], {}, ["user-1-a"], "user-1-a", "", own=own)


def with_ports(policy: Policy) -> Policy:
    return policy._replace(wings=tuple(known._replace(used=known.name == "ports") for known in policy.wings))


def planned(policy_root: Path, job: Job, given: Grant) -> dict[str, Step]:
    policy = with_ports(a_policy(policy_root))
    steps = plan.prolog(policy, job, given, plan.request_of(policy, job, given))
    return {step.name: step for step in steps}


class Nodes:
    """The nodes of one host and one store, each with hooks of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "store").mkdir()
        self.opened: list[Context] = []

    def context(self, job: Job) -> Context:
        """Return the context of a hook of the job on its node."""
        context = a_context(self.root)
        fields = {"node": job.node, "job_id": job.id, "view_id": job.view_id, "cluster": job.cluster}
        paths = NodePaths(str(self.root / job.node), str(self.root / job.node), "/nowhere")
        context = context._replace(paths=paths, run=context.run._replace(**fields))  # type: ignore[arg-type]
        os.makedirs(f"{paths.state}/{job.id}", exist_ok=True)
        os.makedirs(paths.view, exist_ok=True)
        self.opened.append(context)
        return context

    def run(self, job: Job, **rule: object) -> dict[str, str]:
        """Run the step on one node; return what the job's tasks there will see. Raises what degrades it."""
        step = planned(self.root, job, grant(**rule))["rendezvous"]
        context = self.context(job)
        outcome = step.run(context)
        topics, wings = list(outcome.topics), [step.wing]
        record = context.run._replace(environment=outcome.environment, topics=topics, wings=wings)
        runs.save(context.paths.state, record)
        for error in outcome.degraded:
            raise error
        return outcome.environment

    def finish(self, job: Job) -> None:
        """Run the release of the job's epilog on its node."""
        context = self.context(job)
        record = runs.load(context.paths.state, job.id)
        assert record is not None
        release.release(context._replace(run=record._replace(workspace="")), None)

    @property
    def ledger(self) -> list[str]:
        return sorted(os.listdir(self.root / "ports"))

    @property
    def answers(self) -> list[str]:
        return sorted(os.listdir(self.root / "store" / DIRECTORY))

    def put(self, text: str, **whose: Any) -> None:  # noqa: ANN401 - of `FOR_US`
        """Have an answer to job 7 of another writer."""
        cluster, uid, nodelist = {**FOR_US, **whose}.values()
        key = Barrier.of((cluster, uid), 7, 0, "", nodelist).key
        answer = self.root / "store" / DIRECTORY / "test.7.0" / f"rendezvous.{key}.answer"
        answer.parent.mkdir(parents=True)
        answer.write_text(text)


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Nodes:
    """Give nodes of a host on which nobody listens."""
    monkeypatch.setattr(ports, "is_free", lambda port: port > 0)
    return Nodes(tmp_path)


@pytest.mark.parametrize(
    ("job", "there"),
    [
        (a_job(), False),
        (TWO, True),
        (a_job(nodelist="n1,n2"), True),
        (a_job(het_id=7), True),
        (a_job(comment="warmstart: ports=0"), True),
        (a_job(comment="ports=1, said the user"), False),
    ],
)
def test_jobs_of_several_nodes_have_one_and_those_that_ask(tmp_path: Path, job: Job, there: bool) -> None:
    assert ("rendezvous" in planned(tmp_path, job, grant())) is there


def test_the_head_node_answers_before_what_takes_long(tmp_path: Path) -> None:
    given = grant()._replace(images=["docker://reg.example.com/a:1"], profiles=["numba"])
    assert [*planned(tmp_path, TWO, given)] == ["workspace", "rendezvous", "image", "seed"]


@pytest.mark.parametrize(
    ("given", "asked", "most"),
    [(grant(per_job=8), 9, "8"), (grant(per_job=0), 1, "0"), (grant()._replace(own={}), 1, "none")],
)
def test_more_ports_than_a_rule_allows_are_refused(tmp_path: Path, given: Grant, asked: int, most: str) -> None:
    job = a_job(comment=f"warmstart: ports={asked}")
    with pytest.raises(NotOffered, match=f"asks for {asked} ports; it may have {most}"):
        planned(tmp_path, job, given)
    assert planned(tmp_path, job, given._replace(reason="uid 7 is below")) == {}  # warmstart does not serve this job


def test_every_node_gets_what_the_head_reserved(nodes: Nodes) -> None:
    job = TWO._replace(comment="warmstart: ports=2")
    head, other = nodes.run(job), nodes.run(job._replace(node="n2"))
    assert head == other
    assert head["MASTER_ADDR"] == "n1"
    reserved = [head["MASTER_PORT"], *head["WARMSTART_PORTS"].split(",")]
    assert nodes.ledger == sorted(reserved)
    assert all(24000 <= int(port) <= 24999 for port in reserved)
    assert nodes.answers == ["test.7.0"]


def test_a_job_of_one_node_tells_nobody(nodes: Nodes) -> None:
    head = nodes.run(a_job(comment="warmstart: ports=1"))
    assert len(nodes.ledger) == 2
    assert head["MASTER_ADDR"] == "n1"
    assert not (nodes.root / "store" / DIRECTORY).exists()


def test_all_components_meet_at_the_leaders_first_node(nodes: Nodes) -> None:
    """A heterogeneous job's components have ids and node lists of their own; one knows the leader's id only."""
    head = nodes.run(a_job(het_id=7))
    component = a_job(id=8, node="n3", nodelist="n[3-4]", het_id=7)
    assert nodes.run(component) == nodes.run(component._replace(node="n4")) == head
    assert len(nodes.ledger) == 1


def test_the_others_wait_for_the_head(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    heads: list[dict[str, str]] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 9:
            heads.append(nodes.run(TWO))

    monkeypatch.setattr(time, "sleep", pause)
    assert [nodes.run(OTHER)] == heads
    assert len(pauses) == 9


def test_nobody_waits_for_a_silent_head_past_the_deadline(nodes: Nodes) -> None:
    with pytest.raises(HeadSilent, match="the head node n1 has offered no rendezvous port within 0 s"):
        nodes.run(OTHER, wait=0)


def test_a_head_that_has_no_port_says_so(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "is_free", lambda port: port < 0)
    with pytest.raises(ports.PortsUnavailable):
        nodes.run(TWO)
    with pytest.raises(
        ports.PortsUnavailable, match="the head node n1 has no rendezvous port for the job: too few free ports"
    ):
        nodes.run(OTHER)
    assert nodes.ledger == []
    nodes.finish(TWO)
    assert nodes.answers == []


@pytest.mark.parametrize(("required", "error"), [(False, StoreFailed), (True, Refused)])
def test_without_the_store_nobody_has_a_port(nodes: Nodes, required: bool, error: type[Exception]) -> None:
    """The head's answer may have arrived all the same, so its port stays reserved until the epilog."""
    (nodes.root / "store").rmdir()
    with pytest.raises(error, match=r"removing test\.7\.0/rendezvous"):
        nodes.run(TWO, required=required)
    assert len(nodes.ledger) == 1
    with pytest.raises(error, match=r"reading test\.7\.0/rendezvous"):
        nodes.run(OTHER, required=required)


def test_the_heads_epilog_alone_gives_everything_back(nodes: Nodes) -> None:
    nodes.run(TWO)
    nodes.run(OTHER)
    nodes.finish(OTHER)
    assert (len(nodes.ledger), len(nodes.answers)) == (1, 1)
    nodes.finish(TWO)
    assert (nodes.ledger, nodes.answers) == ([], [])


def test_the_ports_outlive_a_prolog_that_was_undone(nodes: Nodes) -> None:
    """Another node may have been told: the epilog gives them back, without a record."""
    nodes.run(TWO)
    context = nodes.context(TWO)
    record = runs.load(context.paths.state, 7)
    assert record is not None
    release.release(context._replace(run=record._replace(workspace="")), None, with_wings=False)
    assert (len(nodes.ledger), nodes.answers) == (1, [])
    release.end_wings(with_ports(context.policy), context.paths, 7, [], context.audit)
    assert nodes.ledger == []


def test_a_requeued_jobs_second_run_does_not_take_the_firsts_answer(nodes: Nodes) -> None:
    nodes.run(TWO)
    again = TWO._replace(restarts=1)
    with pytest.raises(HeadSilent):
        nodes.run(again._replace(node="n2"), wait=0)
    second = nodes.run(again)
    assert nodes.run(again._replace(node="n2")) == second
    assert nodes.ledger == [second["MASTER_PORT"]]


NINTH = '{"address": "n9", "ports": [24000]}'


@pytest.mark.parametrize(
    ("changes", "text", "error"),
    [
        # Ids come again when slurmctld loses its state: another user, other nodes, another cluster.
        ({"uid": 1}, NINTH, HeadSilent),
        ({"nodelist": "n[1-3]"}, NINTH, HeadSilent),
        ({"cluster": "other"}, NINTH, HeadSilent),
        ({}, "", HeadSilent),
        ({}, "[]", HeadSilent),
        ({}, "{", HeadSilent),
        ({}, "null", HeadSilent),
        ({}, '{"address": ""}', ports.PortsUnavailable),
        ({}, '{"address": "n1"}', ports.PortsUnavailable),
    ],
)
def test_an_answer_that_is_none_is_replaced(
    nodes: Nodes, changes: dict[str, Any], text: str, error: type[WarmstartError]
) -> None:
    nodes.put(text, **changes)
    with pytest.raises(error):
        nodes.run(OTHER, wait=0)
    assert nodes.run(TWO) == nodes.run(OTHER)


def test_a_second_prolog_of_the_head_says_its_own_ports(nodes: Nodes) -> None:
    """The first one was killed before it wrote down that it had said anything."""
    nodes.put('{"address": "n1", "ports": [1]}')
    assert nodes.run(TWO) == nodes.run(OTHER)


@pytest.mark.parametrize(
    ("cpus", "oversubscribe", "exclusive", "alone"),
    [
        ("", "", "", False),
        (f"{HERE}", "", "", True),
        (f"{HERE}(x2),1", "", "", True),
        (f"{HERE},1", "", "", True),
        (f"{HERE + 1}", "", "", True),
        (f"{HERE - 1}(x2)", "", "", False),
        (f"{HERE}", "OK", "", False),
        (f"{HERE}", "YES", "", False),
        ("", "NO", "", True),
        ("odd", "", "", False),
        ("", "NO", "NODE", True),
        ("", "NO", "TOPO", True),
        (f"{HERE}", "NO", "NO", False),
        (f"{HERE}", "NO", "USER", False),
        (f"{HERE}", "NO", "MCS", False),
        (f"{HERE}", "NO", "SOMETHING-NEW", False),
    ],
)
def test_who_has_the_first_node_alone(cpus: str, oversubscribe: str, exclusive: str, alone: bool) -> None:
    """By Slurm's own words, of 26.05 and of 23.02, else the processors; what is not known is shared."""
    job = a_job(cpus_per_node=cpus, oversubscribe=oversubscribe, exclusive=exclusive)
    assert wing_step._has_first_node_alone(job) is alone
