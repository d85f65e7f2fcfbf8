"""The wing's part in the sweeps of all hooks (tests/faults/test_hook_sweeps.py)."""

from __future__ import annotations

from tests.lib.hook_site import HookSite


def test_the_job_of_the_sweeps_names_a_model(hook_site: HookSite) -> None:
    """So that faults and kills meet what looks at it, and what asks for copies."""
    hook_site.prepare("epilog")
    shown = [event["way"] for event in hook_site.events() if event["event"] == "model.shown"]
    assert shown
