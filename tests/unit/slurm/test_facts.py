"""What a job's state means."""

from __future__ import annotations

import pytest

from warmstart.slurm.facts import JobFacts


@pytest.mark.parametrize(
    ("state", "over", "left"),
    [
        ("PENDING", False, False),
        ("RUNNING", False, False),
        ("COMPLETING", False, True),
        ("REQUEUED", False, False),
        ("COMPLETED", True, True),
        ("CANCELLED", True, True),
        ("TIMEOUT", True, True),
        ("SOMETHING_NEW", False, False),
    ],
)
def test_a_state_that_is_not_known_to_be_final_is_not(state: str, over: bool, left: bool) -> None:
    job = JobFacts(7, state, "", "", 0)
    assert (job.is_over, job.has_left_its_nodes) == (over, left)
