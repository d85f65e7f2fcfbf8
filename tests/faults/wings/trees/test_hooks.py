"""The wing's part in the sweeps of all hooks (tests/faults/test_hook_sweeps.py)."""

from __future__ import annotations

import re
from pathlib import Path

from tests.lib.hook_site import JOB, HookSite


def test_the_job_of_the_sweeps_reads_a_packed_tree(hook_site: HookSite) -> None:
    """So that faults and kills meet what mounts it, and what takes it down."""
    hook_site.prepare("epilog")
    shown = [event["way"] for event in hook_site.events() if event["event"] == "tree.shown"]
    assert shown[-1] == "copy"
    hook_site.run("job-container")
    assert re.search(rf" {hook_site.workspace}/{JOB}\.\w+/mounted/tree ", Path("/proc/self/mountinfo").read_text())
