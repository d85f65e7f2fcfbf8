"""Errors at every call site of every hook: the right class, a status that drains only for the node's own faults.

A call site is a place in the code that changes something or reads state (`tests.support.faults`). From its first call
on it fails with an errno of its man page. The hook has to end in time, leave what belongs to others as it is, and give
the job all of its preparation or none. What is left when the hook has run again, maintenance removes.
"""

from __future__ import annotations

import pytest

from tests.support.faults import Fault
from tests.support.hook_site import HOOKS, HookSite
from tests.support.sweeping import Outcome, chosen, recover, report, what_happened, wrong_after


@pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("hook", HOOKS)
def test_an_error_at_every_call_site(hook_site: HookSite, hook: str, whole: bool) -> None:
    """`make test` takes a fortieth, `make test-all` all of them."""
    site = hook_site
    site.prepare(hook)
    faults = [Fault(place, error) for place in site.hook(hook).sites for error in place.errors()]
    assert len(faults) > 40
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
