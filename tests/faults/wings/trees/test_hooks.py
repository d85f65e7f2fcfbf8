"""The wing's part in the sweeps of all hooks (tests/faults/hooks.py)."""

from __future__ import annotations

import re
from pathlib import Path

from tests.faults.hooks import SweptNode


def test_the_job_of_the_sweeps_reads_a_packed_tree(swept: SweptNode) -> None:
    """So that faults and kills meet what mounts it, and what takes it down."""
    swept.prepare("epilog")
    shown = [event["way"] for event in swept.events() if event["event"] == "tree.shown"]
    assert shown[-1] == "copy"
    swept.succeed("job-container")
    assert re.search(rf" {swept.workspace}/{swept.job.id}\.\w+/mounted/tree ", Path("/proc/self/mountinfo").read_text())
