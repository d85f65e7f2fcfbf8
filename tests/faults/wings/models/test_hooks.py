"""The wing's part in the sweeps of all hooks (tests/faults/hooks.py)."""

from __future__ import annotations

from tests.faults.hooks import SweptNode


def test_the_job_of_the_sweeps_names_a_model(swept: SweptNode) -> None:
    """So that faults and kills meet what looks at it, and what asks for copies."""
    swept.prepare("epilog")
    shown = [event["way"] for event in swept.events() if event["event"] == "model.shown"]
    assert shown
