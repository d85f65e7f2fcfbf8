"""All nodes of a job learn one address and port from its head node, or none does."""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lib.runs import a_context, a_job, a_policy
from tests.lib.wings.ports.values import a_rendezvous
from warmstart import plan, run_end
from warmstart import record as records
from warmstart.host.deadline import after
from warmstart.job import Job
from warmstart.paths import NodePaths
from warmstart.policy.compiled import Policy
from warmstart.policy.match import Grant
from warmstart.run_end import Ending
from warmstart.runner import Step
from warmstart.steps import environment, release
from warmstart.steps.contract import Context
from warmstart.store.board import DIRECTORY, Whose
from warmstart.store.layout import StoreFailed
from warmstart.wings.ports import ledger as ports
from warmstart.wings.ports import step as wing_step
from warmstart.wings.ports.step import AnswerUnusable, HeadRefused, NoAnswer, NodeShared, PortsNotOffered, Required

RULE = a_rendezvous(shared_nodes=True, wait=5)
TWO = a_job(nodelist="n[1-2]")
FOR_US = Whose(os.getuid(), "test", "n[1-2]")
HERE = os.cpu_count() or 1


def grant(**rule: object) -> Grant:
    """Return what a rule with `rendezvous` and nothing else gives."""
    own = {wing_step.KEY: [json.loads(json.dumps(RULE._replace(**rule)._asdict()))]}  # type: ignore[arg-type]
    return Grant([], [], {}, "user", ["user-1-a"], "user-1-a", "", own=own)


def with_ports(policy: Policy) -> Policy:
    """Return a policy that uses the wing."""
    return policy._replace(wings=tuple(known._replace(used=known.name == "ports") for known in policy.wings))


def planned(policy_root: Path, job: Job, given: Grant) -> list[Step]:
    """Return the steps that the plan has for the job, whose request is parsed first."""
    policy = with_ports(a_policy(policy_root))
    return plan.prolog(policy, job, given, plan.request_of(policy, job, given))


def step_of(policy_root: Path, job: Job, **rule: object) -> Step | None:
    """Return the step that the plan has for the job on its node."""
    steps = planned(policy_root, job, grant(**rule))
    return next((step for step in steps if step.name == "rendezvous"), None)


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
        paths = NodePaths(str(self.root / job.node), "/nowhere")
        context = context._replace(paths=paths, record=context.record._replace(**fields))  # type: ignore[arg-type]
        os.makedirs(f"{paths.state}/{job.id}", exist_ok=True)
        os.makedirs(paths.view, exist_ok=True)
        self.opened.append(context)
        return context

    def run(self, job: Job, **rule: object) -> dict[str, str]:
        """Run the step on one node; return what the job's tasks there will see. Raises what degrades it."""
        step = step_of(self.root, job, **rule)
        assert step is not None
        context = self.context(job)
        outcome = step.run(context)
        topics, wings = list(outcome.topics), [step.wing]
        record = context.record._replace(environment=outcome.environment, topics=topics, wings=wings)
        records.save(context.paths.state, record)
        for error in outcome.degraded:
            raise error
        return outcome.environment

    def finish(self, job: Job) -> None:
        """Run the release of the job's epilog on its node."""
        context = self.context(job)
        record = records.load(context.paths.state, job.id)
        assert record is not None
        release.run(context._replace(record=record._replace(workspace="")), release.Options())

    @property
    def ledger(self) -> list[str]:
        """The reserved ports of the host."""
        return sorted(os.listdir(self.root / "ports"))

    @property
    def answers(self) -> list[str]:
        """The boards in the store."""
        return sorted(os.listdir(self.root / "store" / DIRECTORY))

    def answer(self) -> Path:
        """Return the file of job 7's answer."""
        return self.root / "store" / DIRECTORY / "test.7.0" / "rendezvous.answer"

    def put(self, whose: Whose, text: str) -> None:
        """Have an answer of another writer."""
        self.answer().parent.mkdir(parents=True, exist_ok=True)
        self.answer().unlink(missing_ok=True)
        self.answer().write_text(json.dumps([*whose, text]))


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    """Give nodes of a host on which nobody listens."""
    monkeypatch.setattr(ports, "is_free", lambda port: port > 0)
    made = Nodes(tmp_path)
    yield made
    for context in made.opened:
        context.store.close()


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
    """A job of one node has nobody to meet, unless it says otherwise; array tasks are jobs of their own."""
    assert (step_of(tmp_path, job) is not None) is there


def test_the_order_of_steps(tmp_path: Path) -> None:
    """The head node answers before what takes long."""
    given = grant()._replace(images=["docker://reg.example.com/a:1"], profiles=["numba"])
    names = [step.name for step in planned(tmp_path, TWO, given)]
    assert names == ["workspace", "rendezvous", "image", "seed"]


@pytest.mark.parametrize(("per_job", "asked"), [(8, 9), (0, 1)])
def test_more_ports_than_the_rule_allows_are_refused(tmp_path: Path, per_job: int, asked: int) -> None:
    """A verdict that says how many a job may have."""
    with pytest.raises(PortsNotOffered, match=f"asks for {asked} ports; it may have {per_job}"):
        step_of(tmp_path, a_job(comment=f"warmstart: ports={asked}"), per_job=per_job)


def test_ports_without_a_rule_are_refused(tmp_path: Path) -> None:
    """And a job that warmstart does not serve is not told off for its comment."""
    job = a_job(comment="warmstart: ports=1")
    without = grant()._replace(own={})
    with pytest.raises(PortsNotOffered, match="it may have none"):
        planned(tmp_path, job, without)
    assert planned(tmp_path, job, without._replace(reason="uid 7 is below")) == []


def test_every_node_gets_what_the_head_reserved(nodes: Nodes) -> None:
    """The head node's Slurm name, one port, the same everywhere; further ports where the job asked."""
    job = TWO._replace(comment="warmstart: ports=2")
    head, other = nodes.run(job), nodes.run(job._replace(node="n2"))
    assert head == other
    assert head["MASTER_ADDR"] == "n1"
    reserved = [head["MASTER_PORT"], *head["WARMSTART_PORTS"].split(",")]
    assert nodes.ledger == sorted(reserved)
    assert all(24000 <= int(port) <= 24999 for port in reserved)
    assert nodes.answers == ["test.7.0"]


def test_a_job_of_one_node_tells_nobody(nodes: Nodes) -> None:
    """No store call where there is nobody to wait."""
    head = nodes.run(a_job(comment="warmstart: ports=1"))
    assert len(nodes.ledger) == 2
    assert head["MASTER_ADDR"] == "n1"
    assert not (nodes.root / "store" / DIRECTORY).exists()


def test_all_components_meet_at_the_leaders_first_node(nodes: Nodes) -> None:
    """A heterogeneous job's components have ids and node lists of their own; one knows the leader's id only."""
    leader = a_job(het_id=7)
    head = nodes.run(leader)
    component = a_job(id=8, node="n3", nodelist="n[3-4]", het_id=7)
    assert nodes.run(component) == nodes.run(component._replace(node="n4")) == head
    assert len(nodes.ledger) == 1


def test_the_others_wait_for_the_head(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer comes while they pause, as long as it takes within the deadline."""
    pauses: list[float] = []
    heads: list[dict[str, str]] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 9:
            heads.append(nodes.run(TWO))

    monkeypatch.setattr(time, "sleep", pause)
    assert [nodes.run(TWO._replace(node="n2"))] == heads
    assert len(pauses) == 9


def test_nobody_waits_for_a_failed_head_past_the_deadline(nodes: Nodes) -> None:
    """It said nothing: the error names it, and there is no port instead."""
    with pytest.raises(NoAnswer, match="from the head node n1 within 0 s"):
        nodes.run(TWO._replace(node="n2"), wait=0)


def test_a_head_that_has_no_port_says_so(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others fail at once with its reason, and nothing is reserved."""
    monkeypatch.setattr(ports, "is_free", lambda port: port < 0)
    with pytest.raises(ports.PortsExhausted):
        nodes.run(TWO)
    with pytest.raises(HeadRefused, match="the head node n1 has no rendezvous port for the job: too few free ports"):
        nodes.run(TWO._replace(node="n2"))
    assert nodes.ledger == []
    nodes.finish(TWO)
    assert nodes.answers == []


def test_a_shared_head_node_has_no_port(nodes: Nodes) -> None:
    """Unless the rule says so; with the node for itself the job has one."""
    with pytest.raises(NodeShared, match="does not have its first node n1 exclusively"):
        nodes.run(TWO, shared_nodes=False)
    with pytest.raises(HeadRefused, match="exclusively"):
        nodes.run(TWO._replace(node="n2"), shared_nodes=False)
    assert nodes.run(TWO._replace(oversubscribe="NO"), shared_nodes=False)["MASTER_ADDR"] == "n1"


@pytest.mark.parametrize("node", ["n1", "n2"])
def test_where_it_is_required_the_job_is_refused(nodes: Nodes, node: str) -> None:
    """Head or not, whatever failed: a verdict with the reason."""
    with pytest.raises(Required, match=r"no rendezvous port.*; jobs here do not run without a rendezvous port"):
        nodes.run(TWO._replace(node=node), shared_nodes=False, required=True, wait=0)


@pytest.mark.parametrize(("required", "error"), [(False, StoreFailed), (True, Required)])
def test_a_head_that_cannot_tell_does_without(nodes: Nodes, required: bool, error: type[Exception]) -> None:
    """Its answer may have arrived all the same, so the port stays reserved until the epilog."""
    (nodes.root / "store").rmdir()
    with pytest.raises(error, match=r"removing test\.7\.0/rendezvous"):
        nodes.run(TWO, required=required)
    assert len(nodes.ledger) == 1


def test_the_epilog_gives_everything_back(nodes: Nodes) -> None:
    """On the head the ports and the answer; another node's epilog takes neither."""
    nodes.run(TWO)
    nodes.run(TWO._replace(node="n2"))
    nodes.finish(TWO._replace(node="n2"))
    assert (len(nodes.ledger), len(nodes.answers)) == (1, 1)
    nodes.finish(TWO)
    assert (nodes.ledger, nodes.answers) == ([], [])


def test_an_earlier_runs_answer_is_not_this_runs(nodes: Nodes) -> None:
    """A requeued job whose first run was never released: its second run looks under another name."""
    nodes.run(TWO)
    again = TWO._replace(restarts=1)
    with pytest.raises(NoAnswer):
        nodes.run(again._replace(node="n2"), wait=0)
    second = nodes.run(again)
    assert nodes.run(again._replace(node="n2")) == second
    assert nodes.ledger == [second["MASTER_PORT"]]


@pytest.mark.parametrize("change", [{"uid": 1}, {"nodelist": "n[1-3]"}, {"cluster": "other"}])
def test_an_answer_to_an_earlier_job_of_the_same_id_is_passed_over(nodes: Nodes, change: dict[str, Any]) -> None:
    """Ids come again when slurmctld loses its state: another user, other nodes, another cluster."""
    nodes.put(FOR_US._replace(**change), '{"address": "n9", "ports": [24000]}')
    with pytest.raises(NoAnswer):
        nodes.run(TWO._replace(node="n2"), wait=0)
    assert nodes.run(TWO) == nodes.run(TWO._replace(node="n2"))


def test_a_second_prolog_of_the_head_says_its_own_ports(nodes: Nodes) -> None:
    """The first one was killed before it wrote down that it had said anything."""
    nodes.put(FOR_US, '{"address": "n1", "ports": [1]}')
    assert nodes.run(TWO) == nodes.run(TWO._replace(node="n2"))


@pytest.mark.parametrize("text", ["", "[]", "{", "null"])
def test_a_damaged_answer_is_none(nodes: Nodes, text: str) -> None:
    """The deadline ends the wait."""
    nodes.put(FOR_US, text)
    with pytest.raises(NoAnswer):
        nodes.run(TWO._replace(node="n2"), wait=0)


@pytest.mark.parametrize("said", [{"address": ""}, {"address": "n1"}])
def test_an_answer_without_ports_ends_the_wait(nodes: Nodes, said: dict[str, object]) -> None:
    """It is for this job, and says nothing that can be used."""
    nodes.put(FOR_US, json.dumps(said))
    with pytest.raises(AnswerUnusable):
        nodes.run(TWO._replace(node="n2"))


Print = Callable[[dict[str, str]], list[str]]


@pytest.fixture
def task(nodes: Nodes) -> Print:
    """Give a function that runs the task prolog of job 7 with a user's environment and returns its lines."""
    script = nodes.root / "task-prolog"
    source = Path("packaging/libexec/task-prolog.in").read_text()
    script.write_text(source.replace("@VAR@", str(nodes.root)))

    def run(user: dict[str, str]) -> list[str]:
        env = {"SLURMD_NODENAME": "n1", "SLURM_JOB_ID": "7", **user}
        done = subprocess.run(["/bin/sh", script], env=env, capture_output=True, text=True, check=True)
        assert done.stderr == ""
        return done.stdout.splitlines()

    return run


def render(nodes: Nodes, variables: dict[str, str]) -> None:
    """Write job 7's view."""
    environment.run(nodes.context(a_job()), environment.Options({}, variables, ()))


OWN = "WARMSTART_OWN"
OURS = {"MASTER_ADDR": "n1", "MASTER_PORT": "24007"}
LINES = [f"export {name}={value}" for name, value in OURS.items()]
STEPS = {**OURS, OWN: "7\t/w\t/c\tMASTER_ADDR=n1\tMASTER_PORT=24007"}
OUTER = {"MASTER_ADDR": "n3", "MASTER_PORT": "24009", OWN: "6\t/w\t/c\tMASTER_ADDR=n3\tMASTER_PORT=24009"}


@pytest.mark.parametrize(
    ("user", "lines"),
    [
        ({}, LINES),
        (STEPS, LINES),  # an srun step has the batch step's
        (OURS, []),
        ({"MASTER_ADDR": "n2", "MASTER_PORT": "29500"}, []),
        ({**STEPS, "MASTER_ADDR": "n2"}, LINES[1:]),
        ({"MASTER_PORT": "29500"}, LINES[:1]),
        (OUTER, LINES),
        ({**OUTER, "MASTER_PORT": "29500"}, LINES[:1]),
    ],
)
def test_what_the_user_set_stays_and_an_outer_jobs_goes(
    nodes: Nodes, task: Print, user: dict[str, str], lines: list[str]
) -> None:
    """A job that a job submits has its environment: that port is another live job's."""
    render(nodes, OURS)
    assert [line for line in task(user) if OWN not in line] == lines


def test_without_an_own_rendezvous_an_outer_jobs_is_unset(nodes: Nodes, task: Print) -> None:
    """But not what came from this job's own batch step, nor what the user set."""
    render(nodes, {"A": "1"})
    ours = task({})
    assert ours[0] == "export A=1"
    assert task(OUTER) == [*ours, "unset MASTER_ADDR", "unset MASTER_PORT"]
    assert task(STEPS) == task({"MASTER_ADDR": "n2", "MASTER_PORT": "1"}) == ours


def test_the_ports_outlive_a_prolog_that_was_undone(nodes: Nodes) -> None:
    """Another node may have been told: the epilog gives them back, without a record."""
    nodes.run(TWO)
    context = nodes.context(TWO)
    record = records.load(context.paths.state, 7)
    assert record is not None
    ending = Ending(context.policy, context.paths, record._replace(workspace=""), context.audit, context.store)
    run_end.undo(ending, after(5))
    assert (len(nodes.ledger), nodes.answers) == (1, [])
    job = run_end.JobOnNode("n1", 7, [])
    run_end.end_wings(with_ports(context.policy), context.paths, job, context.audit, after(5))
    assert nodes.ledger == []


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
def test_what_slurm_says_counts_first(cpus: str, oversubscribe: str, exclusive: str, alone: bool) -> None:
    """Slurm's own words, of 26.05 and of 23.02, else the processors; what is not known is shared."""
    job = a_job(cpus_per_node=cpus, oversubscribe=oversubscribe, exclusive=exclusive)
    assert wing_step._has_first_node_alone(job) is alone
