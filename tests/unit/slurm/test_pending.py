"""What wings tell of pending jobs: a bounded number, and of a submit line what it asks for."""

from __future__ import annotations

import pytest

from warmstart.slurm.pending import LONGEST_LINE, MOST, PendingJob, SubmitLine, by_priority

pytestmark = pytest.mark.threat(40)

JOB = PendingJob(7, 2001, 2001, "c1", "main", "team", "high", "a100&nvme", "train", 0, "warmstart: image=a:1")


def test_a_bounded_number_of_jobs() -> None:
    """Those of the highest priority."""
    found = by_priority((number, JOB._replace(job_id=number)) for number in range(MOST + 10))
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
