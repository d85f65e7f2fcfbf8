"""What pending jobs ask for, from squeue's JSON: whatever their owners wrote, each job is one job."""

from __future__ import annotations

import json
from typing import Any

import pytest

from warmstart.slurm import pending
from warmstart.slurm.pending import LONGEST_COMMENT, LONGEST_LINE, MOST, PendingJob, SubmitLine

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


def squeue(*jobs: dict[str, Any]) -> str:
    """Return squeue's output."""
    return json.dumps({"meta": {"Slurm": {"release": "22.05.8"}}, "errors": [], "jobs": jobs}, indent=3)


def test_a_job_of_an_old_and_of_a_new_slurm() -> None:
    """Numbers and states have another form, and the new one has the submit line."""
    assert pending.parse(squeue(OLD)) == [JOB]
    assert pending.parse(squeue(NEW)) == [JOB._replace(pyxis_image="b:1")]


def test_only_pending_jobs_by_priority() -> None:
    """22.05 prints jobs in all states, whatever it is asked for."""
    jobs = [OLD | {"job_id": number, "priority": number % 10 + 1} for number in range(1, 30)]
    found = pending.parse(squeue(*jobs, OLD | {"job_state": "RUNNING"}, NEW | {"job_state": ["RUNNING"]}))
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
    assert len(pending.parse(squeue(OLD | change))) == counts
    assert len(pending.parse(squeue(NEW | change))) == counts


def test_nothing_that_a_user_writes_looks_like_another_job() -> None:
    """Quotes, line breaks, control characters, bytes that are no UTF-8."""
    text = 'a"},\n{"job_id": 8, "user_id": 0}], "jobs": [{"\x01'
    (job,) = pending.parse(squeue(OLD | {"comment": text}))
    assert job == JOB._replace(comment=text)
    raw = squeue(OLD).encode().replace(b"warmstart: image=a:1", b"\xff\xfe\x01")
    (job,) = pending.parse(raw.decode("utf-8", "replace"))
    assert (job.uid, job.comment) == (2001, "\ufffd\ufffd\x01")


@pytest.mark.parametrize("at", [10, 200, 500])
def test_of_a_cut_answer_the_whole_jobs_count(at: int) -> None:
    """Process.run cuts what is too long."""
    text = squeue(OLD, OLD | {"job_id": 8})
    start = text.index('"jobs"')
    found = pending.parse(text[: start + at])
    assert [job.job_id for job in found] == ([7] if at == 500 else [])


@pytest.mark.parametrize("text", ["", "[]", "squeue: error: unable to contact", '{"errors": []}'])
def test_an_answer_without_jobs_is_none(text: str) -> None:
    """Such as of a Slurm that was built without JSON."""
    with pytest.raises(ValueError, match="no jobs"):
        pending.parse(text)


def test_values_of_other_types_are_as_none() -> None:
    """No job of root's comes out of it: `limits.min_uid` excludes uid 0."""
    (job,) = pending.parse(squeue({"job_state": "PENDING", "user_id": "2001", "comment": ["x"]}))
    assert job == PendingJob(0, 0, 0, "", "", "", "", "", "", 0, "")
    assert pending.parse('{"jobs": [1, "x", null, [], {}]}') == []


@pytest.mark.parametrize(("key", "longest"), [("comment", LONGEST_COMMENT), ("name", 256), ("features", 256)])
def test_a_job_with_too_long_a_text_is_left_out(key: str, longest: int) -> None:
    """A cut text could match a pattern that the whole does not."""
    assert len(pending.parse(squeue(OLD | {key: "x" * longest}))) == 1
    assert pending.parse(squeue(OLD | {key: "x" * (longest + 1)})) == []


def test_a_bounded_number_of_jobs() -> None:
    """Those of the highest priority."""
    found = pending.by_priority((number, JOB._replace(job_id=number)) for number in range(MOST + 10))
    assert (len(found), found[0].job_id, found[-1].job_id) == (MOST, MOST + 9, 10)


@pytest.mark.parametrize(
    ("line", "options"),
    [
        ("sbatch job.sh", SubmitLine()),
        ("sbatch --container-image=reg.io/a:1 job.sh", SubmitLine("reg.io/a:1")),
        ("srun --container-image reg.io/a:1 hostname", SubmitLine("reg.io/a:1")),
        ("sbatch --warm-image=reg.io/a:1 --no-warm job.sh", SubmitLine("", "reg.io/a:1", True)),
        ("sbatch --container-image", SubmitLine()),
        ("sbatch --container-image=a:1 job.sh --container-image=b:1", SubmitLine("a:1")),
        ("sbatch --container-image-x=a:1 x--container-image=b:1", SubmitLine()),
        ("", SubmitLine()),
    ],
)
def test_the_images_of_a_submit_line(line: str, options: SubmitLine) -> None:
    """The first that is named counts; what the script gets comes later."""
    assert SubmitLine.of(line) == options


def test_a_long_submit_line_is_read_in_part() -> None:
    """And no word of it that may be cut."""
    start = "sbatch --container-image="
    padding = "x" * (LONGEST_LINE - 30)
    assert SubmitLine.of(f"{start}a:1 {padding * 100}").pyxis_image == "a:1"
    assert SubmitLine.of(f"sbatch {padding} --container-image=reg.io/team/app:1") == SubmitLine()
