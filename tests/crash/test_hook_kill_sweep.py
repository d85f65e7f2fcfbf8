"""Every hook, the background import and both kinds of maintenance, killed before each call that changes something.

Then the same hook runs again, and what comes after it; then maintenance. An independent reader of the store and the
node judges (`tests.support.judge`): after the kill nothing in the store is half, at last nothing of the job is left.
"""

from __future__ import annotations

import pytest

from tests.support.hook_site import HOOKS, HookSite
from tests.support.sweeping import Killed, chosen, recover, report


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_killed_before_every_change(hook_site: HookSite, hook: str, whole: bool) -> None:
    """`make test` takes a fortieth of the calls, `make test-all` all of them."""
    site = hook_site
    site.prepare(hook)
    calls = site.hook(hook).calls
    assert calls > 5
    outcomes, wrong = [], []
    for call in chosen(range(1, calls + 1), whole=whole):
        site.prepare(hook)
        before = site.neighbours()
        done = site.hook(hook, stop_at=call)
        if done.status is not None:  # it had less to do this time: what is due today goes by hashes
            assert done.calls < call
            continue
        found = site.problems(settled=False)
        left, repaired, still = recover(site, hook)
        found += [f"maintenance leaves {problem}" for problem in still]
        if site.neighbours() != before:
            found.append("others' files have changed")
        assert done.stopped_at is not None
        name, _, where, domain = done.stopped_at
        outcomes.append(Killed(hook, call, name, where, domain, left, repaired))
        wrong += [f"before call {call} of {calls}, {name} in {where} ({domain}): {text}" for text in found]
    assert not wrong, "\n".join(wrong)
    if whole:
        report(f"kills-{hook}", outcomes, calls)
