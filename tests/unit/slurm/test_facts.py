"""What a job's state means."""

from __future__ import annotations

import pytest

from warmstart.slurm.facts import JobFacts


@pytest.mark.parametrize(
    ("state", "over", "pending"),
    [
        ("PENDING", False, True),
        ("RUNNING", False, False),
        ("COMPLETING", False, False),
        ("REQUEUED", False, False),
        ("COMPLETED", True, False),
        ("CANCELLED", True, False),
        ("TIMEOUT", True, False),
        ("SOMETHING_NEW", False, False),
    ],
)
def test_a_state_that_is_not_known_to_be_final_is_not(state: str, over: bool, pending: bool) -> None:
    """What maintenance takes away is gone for good."""
    job = JobFacts(7, state, "", "", 0, "")
    assert (job.is_over, job.is_pending) == (over, pending)
