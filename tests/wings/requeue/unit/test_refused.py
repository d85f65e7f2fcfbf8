"""Requeueing a job whose image is not there in time: this job alone, a few times, and never at the node's cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.entry_site import NODE, EntrySite
from warmstart.entry import prolog
from warmstart.entry.hook import Hook
from warmstart.errors import WarmstartError
from warmstart.host.deadline import Deadline
from warmstart.images.imports.waiting import ImageWaitExpired
from warmstart.job import Job
from warmstart.policy.compiled import Wing
from warmstart.steps import image
from warmstart.wings.requeue import refused, stored

EXPIRED = ImageWaitExpired(image="reg.example.com/a:1", waited_s=5, producer="imported by pid 9 on n2 for job 3")


class Requeueing:
    """A node on which an image is missing, with stand-ins for Slurm's commands."""

    def __init__(self, site: EntrySite, patch: pytest.MonkeyPatch, failure: WarmstartError = EXPIRED) -> None:
        self.site = site
        self.calls = site.root / "calls"
        self.programs = site.root / "bin"
        self.programs.mkdir()
        self.program("scontrol", "")
        self.program("squeue", "echo '7|RUNNING||7|N/A|1|'")
        policy = site.policy
        self.policy = policy._replace(
            rules=tuple(rule._replace(images=("reg.example.com/a:1",)) for rule in policy.rules),
            paths=policy.paths._replace(scontrol=str(self.programs / "scontrol")),
            images=policy.images._replace(registries=("reg.example.com",)),
            own={"requeue": 2},
            wings=(Wing("requeue", used=True, step="", early=False, end=""),),
        )
        site.write(self.policy)
        site.environ(SLURM_JOB_RESTART_COUNT="0", SLURM_CONF="/etc/s.conf")

        def fail(*_: object, **__: object) -> None:
            raise failure

        patch.setattr(image, "run", fail)

    def program(self, name: str, script: str) -> None:
        """Write a stand-in, which writes down how it was called."""
        path = self.programs / name
        path.write_text(f'#!/bin/sh\necho "{name} $* $SLURM_CONF" >>{self.calls}\n{script}\n')
        path.chmod(0o755)

    def prolog(self) -> list[str]:
        """Run the prolog, which ends with 0; return the calls of Slurm's commands."""
        self.calls.unlink(missing_ok=True)
        assert prolog.main(self.site.installation.prefix) == 0
        return self.calls.read_text().splitlines() if self.calls.exists() else []

    @property
    def verdict(self) -> str:
        """What the job's tasks are told."""
        return Path(self.site.paths.view, "7", "verdict").read_text()

    def events(self) -> list[Any]:
        """Return how often the job was requeued, was not, and was refused."""
        return [len(self.site.events(f"job.{name}")) for name in ("requeued", "not-requeued", "refused")]


@pytest.fixture
def node(entry_site: EntrySite, monkeypatch: pytest.MonkeyPatch) -> Requeueing:
    """Return the first node of job 7."""
    return Requeueing(entry_site, monkeypatch)


def test_a_batch_job_goes_back_into_the_queue(node: Requeueing) -> None:
    """With one call, after one question; the audit and the job's view say why, the store how often."""
    asked, requeued_ = node.prolog()
    assert asked.startswith("squeue --noheader --states=all --jobs=7 ")
    assert requeued_ == "scontrol requeue 7 /etc/s.conf"
    assert node.events() == [1, 0, 0]
    (event,) = node.site.events("job.requeued")
    assert (event["name"], event["times"], event["most"], event["error"]["code"]) == ("7", 1, 2, "job-refused")
    assert "imported by pid 9 on n2 for job 3" in node.verdict
    assert "the job is requeued, 1 of at most 2 times" in node.verdict
    (waits,) = stored.waiting(str(node.site.store), "reg.example.com/a:1", "test")
    assert (waits.name, waits.job_id, waits.times) == ("7", 7, 1)


def test_it_is_not_requeued_for_ever(node: Requeueing) -> None:
    """Then it fails, with the same message and the reason."""
    for restarts in range(3):
        node.site.environ(SLURM_JOB_RESTART_COUNT=str(restarts))
        calls = node.prolog()
    assert [call for call in calls if call.startswith("scontrol requeue")] == []
    assert node.events() == [2, 1, 1]
    assert "imported by pid 9 on n2" in node.verdict
    assert "was not requeued: it was requeued 2 times already (requeue.times)" in node.verdict


def test_a_task_of_an_array_alone(node: Requeueing) -> None:
    """`scontrol requeue 7` would requeue all tasks: 7 is the array's id, too."""
    node.program("squeue", "echo '8|RUNNING||7|0|1|'; echo '7|RUNNING||7|3|1|'")
    assert node.prolog()[-1] == "scontrol requeue 7_3 /etc/s.conf"


@pytest.mark.parametrize(("array", "name"), [("7_3", "7_3"), ("", "7")])
def test_where_the_node_is_informed_nobody_is_asked(
    node: Requeueing, monkeypatch: pytest.MonkeyPatch, array: str, name: str
) -> None:
    """One call is all."""
    inform(monkeypatch, array)
    assert node.prolog() == [f"scontrol requeue {name} /etc/s.conf"]


def inform(patch: pytest.MonkeyPatch, array: str) -> None:
    """Have this node know of which array the job is a task."""

    def informed(hook: Hook, names: tuple[str, ...], _deadline: Deadline) -> Job:
        assert names == ("array",)
        return hook.job._replace(array=array)

    patch.setattr(refused, "informed", informed)


def test_a_heterogeneous_job_as_a_whole(node: Requeueing) -> None:
    """By its leader: a component cannot be requeued alone. The other components' hooks count the same run."""
    node.site.environ(SLURM_HET_JOB_ID="6")
    assert node.prolog() == ["scontrol requeue 6 /etc/s.conf"]
    (waits,) = stored.waiting(str(node.site.store), "reg.example.com/a:1", "test")
    assert (waits.name, waits.job_id, waits.times) == ("6", 6, 1)
    node.program("scontrol", "echo 'Job is pending execution for job 6' >&2; exit 1")
    node.prolog()
    assert node.events() == [2, 0, 0]
    assert [waits.times for waits in stored.waiting(str(node.site.store), "reg.example.com/a:1", "test")] == [1]


def test_the_other_nodes_ask_nobody(node: Requeueing) -> None:
    """Their tasks would be told the same message."""
    node.site.environ(SLURM_JOB_NODELIST=f"a[1-3],{NODE}")
    assert node.prolog() == []
    assert node.events() == [0, 0, 1]
    assert "imported by pid 9 on n2" in node.verdict


@pytest.mark.timed
@pytest.mark.parametrize(
    ("program", "script", "reason"),
    [
        ("scontrol", "echo 'Only batch jobs are accepted or processed for job 7' >&2; exit 1", "Only batch jobs"),
        ("scontrol", "echo 'Requested operation is presently disabled for job 7' >&2; exit 1", "presently disabled"),
        ("scontrol", "exec sleep 600", "was killed at its deadline"),
        ("squeue", "exec sleep 600", "was killed at its deadline"),
        ("squeue", "echo 'Unable to contact slurm controller' >&2; exit 1", "Unable to contact"),
        ("squeue", "echo 'Invalid job id specified' >&2; exit 1", "it has gone"),
        ("squeue", "echo '7|PENDING||7|1-9|1|'", "is not one task of an array"),
    ],
)
def test_a_job_that_cannot_be_requeued_fails(
    node: Requeueing, monkeypatch: pytest.MonkeyPatch, program: str, script: str, reason: str
) -> None:
    """With the message that it would have got, and why; in time, and the node stays in service."""
    monkeypatch.setattr(refused, "SECONDS", 2.0 if "sleep" in script else 60.0)
    node.program(program, script)
    node.prolog()
    assert node.events() == [0, 1, 1]
    assert "imported by pid 9 on n2" in node.verdict
    assert reason in node.verdict


def test_without_slurms_commands_the_job_fails(node: Requeueing, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing program would drain the node elsewhere."""
    inform(monkeypatch, "")
    (node.programs / "scontrol").unlink()
    node.prolog()
    assert node.events() == [0, 1, 1]


def test_a_store_that_is_away_counts_nothing_and_requeues_nothing(node: Requeueing) -> None:
    """Else a job could go round for ever."""
    node.site.store.rename(node.site.root / "away")
    assert [call for call in node.prolog() if "requeue" in call] == []
    assert node.events() == [0, 1, 1]


def test_only_where_the_policy_says_so(node: Requeueing) -> None:
    """The default is to fail."""
    node.site.write(node.policy._replace(own={}, wings=(node.policy.wings[0]._replace(used=False),)))
    assert node.prolog() == []
    assert node.events() == [0, 0, 1]


def test_a_mistake_of_the_users_is_none_of_this(node: Requeueing) -> None:
    """It would be the same the next time."""
    node.site.environ(SLURM_JOB_COMMENT="warmstart: profiles=numbers")
    assert node.prolog() == []
    assert node.events() == [0, 0, 1]
