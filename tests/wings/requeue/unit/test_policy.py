"""The policy's `requeue`."""

from __future__ import annotations

import pytest

from tests.support.policy_site import MINIMAL, Compile, Site, refusals


@pytest.mark.parametrize(
    ("text", "own", "used"),
    [
        ("", {}, False),
        ("requeue: null\n", {}, False),
        ("requeue: {}\n", {"requeue": 3}, True),
        ("requeue: {times: 1}\n", {"requeue": 1}, True),
    ],
)
def test_the_section_switches_it_on(compiled_of: Compile, text: str, own: dict[str, int], used: bool) -> None:
    """Without it no job is requeued."""
    policy = compiled_of(MINIMAL + text)
    assert policy.own == own
    assert [known.used for known in policy.wings if known.name == "requeue"] == [used]
    assert policy.parts("refused") == (["requeue.refused"] if used else [])
    assert policy.parts("importing") == (["requeue.importing"] if used else [])


def test_where_no_job_fails_none_is_requeued(site: Site) -> None:
    """The section would promise something."""
    (refusal,) = refusals(site, f"{MINIMAL}on_error: {{image: run-without}}\nrequeue: {{}}\n")
    assert (
        refusal == "4:10: requeue: has no effect: with on_error.image: run-without no job fails for want of its image"
    )
