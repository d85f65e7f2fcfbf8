"""What pending jobs ask for, from squeue's JSON: whatever their owners wrote, each job is one job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from warmstart.host.deadline import after
from warmstart.slurm.facts import Access
from warmstart.slurm.pending import LONGEST_COMMENT, PendingJob
from warmstart.slurm.slurmctld import LookUpFailed, Slurmctld
from warmstart.wings.prefetch.squeue import parse, pending

pytestmark = pytest.mark.threat(40)

JOB = PendingJob(7, 2001, 2001, "c1", "main", "team", "high", "a100&nvme", "train", 0, "warmstart: image=a:1")
# As 22.05 writes a job, and as 25.11 does; each has a hundred further keys.
OLD = {
    "job_id": 7, "user_id": 2001, "group_id": 2001, "cluster": "c1", "partition": "main", "account": "team",
    "qos": "high", "features": "a100&nvme", "name": "train", "array_job_id": 0, "comment": "warmstart: image=a:1",
    "job_state": "PENDING", "priority": 5,
}  # fmt: skip
NEW = OLD | {
    "job_state": ["PENDING"],
    "array_job_id": {"set": True, "infinite": False, "number": 0},
    "priority": {"set": True, "infinite": False, "number": 5},
    "submit_line": "sbatch --container-image=b:1 job.sh",
}


def output(*jobs: dict[str, Any]) -> str:
    """Return squeue's output."""
    return json.dumps({"meta": {"Slurm": {"release": "22.05.8"}}, "errors": [], "jobs": jobs}, indent=3)


def test_a_job_of_an_old_and_of_a_new_slurm() -> None:
    """Numbers and states have another form, and the new one has the submit line."""
    assert parse(output(OLD)) == [JOB]
    assert parse(output(NEW)) == [JOB._replace(pyxis_image="b:1")]


def test_only_pending_jobs_by_priority() -> None:
    """22.05 prints jobs in all states, whatever it is asked for."""
    jobs = [OLD | {"job_id": number, "priority": number % 10 + 1} for number in range(1, 30)]
    found = parse(output(*jobs, OLD | {"job_state": "RUNNING"}, NEW | {"job_state": ["RUNNING"]}))
    assert [job.job_id for job in found[:4]] == [9, 19, 29, 8]
    assert len(found) == 29


@pytest.mark.parametrize(
    ("change", "counts"),
    [
        ({"state_reason": "Priority"}, True),
        ({"state_reason": "Dependency"}, True),  # the other job may end well
        ({"state_reason": "BeginTime"}, True),
        ({"state_reason": "JobHeldUser"}, False),
        ({"state_reason": "DependencyNeverSatisfied"}, False),
        ({"state_reason": "BadConstraints"}, False),
        ({"priority": 0, "state_reason": "None"}, False),  # held, whatever is said of it
        ({"priority": {"set": True, "infinite": False, "number": 0}}, False),
        ({"priority": {"set": False, "infinite": False, "number": 0}}, True),  # slurmctld has not set it yet
    ],
)
def test_jobs_that_cannot_start_as_they_are_count_for_nothing(change: dict[str, Any], counts: bool) -> None:
    """They would keep others' images waiting, perhaps for a job that is never released."""
    assert len(parse(output(OLD | change))) == counts
    assert len(parse(output(NEW | change))) == counts


def test_nothing_that_a_user_writes_looks_like_another_job() -> None:
    """Quotes, line breaks, control characters, bytes that are no UTF-8."""
    text = 'a"},\n{"job_id": 8, "user_id": 0}], "jobs": [{"\x01'
    (job,) = parse(output(OLD | {"comment": text}))
    assert job == JOB._replace(comment=text)
    raw = output(OLD).encode().replace(b"warmstart: image=a:1", b"\xff\xfe\x01")
    (job,) = parse(raw.decode("utf-8", "replace"))
    assert (job.uid, job.comment) == (2001, "\ufffd\ufffd\x01")


@pytest.mark.parametrize("at", [10, 200, 500])
def test_of_a_cut_answer_the_whole_jobs_count(at: int) -> None:
    """Process.run cuts what is too long."""
    text = output(OLD, OLD | {"job_id": 8})
    start = text.index('"jobs"')
    found = parse(text[: start + at])
    assert [job.job_id for job in found] == ([7] if at == 500 else [])


@pytest.mark.parametrize("text", ["", "[]", "squeue: error: unable to contact", '{"errors": []}'])
def test_an_answer_without_jobs_is_none(text: str) -> None:
    """Such as of a Slurm that was built without JSON."""
    with pytest.raises(ValueError, match="no jobs"):
        parse(text)


def test_values_of_other_types_are_as_none() -> None:
    """No job of root's comes out of it: `limits.min_uid` excludes uid 0."""
    (job,) = parse(output({"job_state": "PENDING", "user_id": "2001", "comment": ["x"]}))
    assert job == PendingJob(0, 0, 0, "", "", "", "", "", "", 0, "")
    assert parse('{"jobs": [1, "x", null, [], {}]}') == []


@pytest.mark.parametrize(("key", "longest"), [("comment", LONGEST_COMMENT), ("name", 256), ("features", 256)])
def test_a_job_with_too_long_a_text_is_left_out(key: str, longest: int) -> None:
    """A cut text could match a pattern that the whole does not."""
    assert len(parse(output(OLD | {key: "x" * longest}))) == 1
    assert parse(output(OLD | {key: "x" * (longest + 1)})) == []


def test_squeue_is_asked_once_for_all(tmp_path: Path) -> None:
    """Where no wing tells of pending jobs."""
    program = tmp_path / "squeue"
    program.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/asked\ncat {tmp_path}/answer\n')
    program.chmod(0o755)
    (tmp_path / "answer").write_text(output(OLD, OLD | {"job_id": 8}))
    slurmctld = Slurmctld(Access(str(tmp_path / "scontrol")))
    assert [job.job_id for job in slurmctld.pending(after(60), pending)] == [7, 8]
    assert (tmp_path / "asked").read_text() == "--json --states=PENDING\n"
    program.write_text("#!/bin/sh\necho 'Unable to contact' >&2; exit 1\n")
    with pytest.raises(LookUpFailed, match="about pending jobs: squeue: Unable to contact"):
        slurmctld.pending(after(60), pending)
