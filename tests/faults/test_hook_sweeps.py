"""Every hook, the background import and both kinds of maintenance: an error at every call site, a kill at every change.

A call site is a place in the code that changes something or reads state (`tests.lib.faults`). From its first call
on it fails with an errno of its man page: of the right class, and with a status that drains only for the node's own
faults. The hook has to end in time, leave what belongs to others as it is, and give the job all of its preparation or
none.

After an error, and after a kill, the same hook runs again, and what comes after it; then maintenance. An independent
reader of the store and the node judges (`tests.lib.judge`): after a kill nothing in the store is half, at last
nothing of the job is left.

`make test` takes an eightieth of the cases, `make test-all` all of them.
"""

from __future__ import annotations

import pytest

from tests.lib.faults import Fault
from tests.lib.hook_site import HOOKS, HookSite
from tests.lib.sweeping import Killed, Outcome, chosen, recover, report, what_happened, wrong_after

WHOLE = pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.sweep)])


@WHOLE
@pytest.mark.parametrize("hook", HOOKS)
def test_an_error_at_every_call_site(hook_site: HookSite, hook: str, whole: bool) -> None:
    """It is of the right class, costs nothing of others, and what it leaves is removed."""
    site = hook_site
    faults = [Fault(place, error) for place in site.without_fault(hook).sites for error in place.errors()]
    assert len(faults) > 30
    outcomes, wrong = [], []
    for fault in chosen(faults, whole=whole):
        site.prepare(hook)
        before, known = site.neighbours(), site.known_events()
        done = site.hook(hook, fault=fault)
        events = site.events(known)
        found = wrong_after(site, hook, fault, done, events) + site.problems(settled=False)
        left, repaired, still = recover(site, hook)
        found += [f"maintenance leaves {problem}" for problem in still]
        if site.neighbours() != before:
            found.append("others' files have changed")
        happened = what_happened(done, events)
        outcomes.append(Outcome(hook, *fault.site[:1], *fault.site[2:], fault.error, happened, left, repaired))
        wrong += [
            f"{fault.site.call} in {fault.site.where} ({fault.site.domain}), {fault.error}: {text}" for text in found
        ]
    assert not wrong, "\n".join(wrong)
    if whole:
        report(f"errors-{hook}", outcomes, len(faults))


@WHOLE
@pytest.mark.parametrize("hook", HOOKS)
def test_a_hook_killed_before_every_change(hook_site: HookSite, hook: str, whole: bool) -> None:
    """After that nothing in the store is half, and what is left is removed."""
    site = hook_site
    calls = site.without_fault(hook).calls
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
