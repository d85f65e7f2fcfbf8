"""What an act is, and how its errors and its kills are swept.

`make test` takes one case of each act, and one of SWEEP_SHARE of the hooks that each job waits for; SWEEP_SEED says
which. `pytest -m ''` takes all.
"""

from __future__ import annotations

import os
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TypeVar

import pytest

from tests.lib.faults import Done, Fault

LATER_S = 4 * 86_400.0  # what those left that died stays for three days, at most
SHARE = int(os.environ.get("SWEEP_SHARE", "160"))
ONE = 1_000_000  # the share of which one case is left
# A part of the cases, and all of them.
WHOLE = pytest.mark.parametrize("whole", [False, pytest.param(True, marks=pytest.mark.sweep)])
Case = TypeVar("Case")


class Act(ABC):
    """Something that changes the disk. The place where it happens is the same before each `prepare`."""

    @abstractmethod
    def prepare(self) -> None:
        """Bring the place back to where this is next."""

    @abstractmethod
    def run(self, fault: Fault | None = None, stop_at: int = 0) -> Done:
        """Do it in a child, with a fault, or killed before its n-th change."""

    @abstractmethod
    def check(self, done: Done, fault: Fault | None, /) -> list[str]:
        """Return what is wrong: now, and when it was done again, with what comes after it."""


def chosen(cases: Sequence[Case], share: int) -> list[Case]:
    """Return one of so many cases, by SWEEP_SEED; at least one."""
    dice = random.Random(os.environ.get("SWEEP_SEED", "1"))  # S311: no secret
    picked = dice.sample(range(len(cases)), -(-len(cases) // share))
    return [cases[index] for index in sorted(picked)]


def _without_fault(act: Act) -> tuple[Done, list[str]]:
    """Do it; return what it came by, and what is wrong even so."""
    act.prepare()
    done = act.run()
    return done, [f"without a fault: {text}" for text in act.check(done, None)]


def failures(act: Act, share: int = 1) -> list[str]:
    """Let each call site of an act fail, with each error that is told apart; return what is wrong."""
    done, wrong = _without_fault(act)
    faults = [Fault(place, error) for place in done.sites for error in place.errors()]
    assert faults
    for fault in chosen(faults, share):
        act.prepare()
        done = act.run(fault)
        found = act.check(done, fault)
        if not done.hits:
            found.append("the call did not happen")
        wrong += [
            f"{fault.site.call} in {fault.site.where} ({fault.site.domain}), {fault.error}: {text}" for text in found
        ]
    return wrong


def deaths(act: Act, share: int = 1) -> list[str]:
    """Kill an act before the first and the last call of each call site that changes something; return what is wrong."""
    done, wrong = _without_fault(act)
    changes, missed = done.changes, 0
    assert changes
    calls = [
        call for call, place in enumerate(changes, 1) if place not in changes[: call - 1] or place not in changes[call:]
    ]
    for call in chosen(calls, share):
        act.prepare()
        done = act.run(stop_at=call)
        if done.status is not None:  # it had less to do this time: what is due today goes by hashes
            assert len(done.changes) < call
            missed += 1
            continue
        assert done.stopped_at is not None
        name, _, where, domain = done.stopped_at
        wrong += [
            f"before call {call} of {len(changes)}, {name} in {where} ({domain}): {text}"
            for text in act.check(done, None)
        ]
    if missed > len(calls) / 10:  # the place is another one than at first
        wrong.append(f"{missed} of {len(calls)} calls were not reached")
    return wrong
