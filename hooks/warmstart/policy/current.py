"""The policy that is in force, as the command line reads it: without writing anything, for root and for users."""

from __future__ import annotations

import os
from typing import NamedTuple

from warmstart.errors import PolicyError
from warmstart.paths import Installation
from warmstart.policy import compiled
from warmstart.policy.compiled import Policy
from warmstart.policy.invalid import PolicyUnreadable


def hint_for(error: PolicyError) -> str:
    """Return what to do about a policy that could not be read; for users something else than for root."""
    if isinstance(error, PolicyUnreadable) and os.geteuid() != 0:
        return "ask as root, or have the policy's directory and files made readable for all"
    return error.hint


class CurrentPolicy(NamedTuple):
    """The policy that the next hook will use."""

    policy: Policy
    origin: str  # the file that it was read from
    changed: bool  # whether the site's files are newer than the compiled form that we may read
    problem: PolicyError | None  # why newer files are not in force


def current_policy(installation: Installation) -> CurrentPolicy:
    """Return the policy; a `PolicyError` if there is no valid one.

    A user who may not read the hooks' compiled form has the site's files compiled in memory.
    """
    compiled_policy = compiled.read(installation.compiled_policy)
    if compiled_policy is not None and compiled.is_current(compiled_policy):
        return CurrentPolicy(compiled_policy, installation.compiled_policy, changed=False, problem=None)
    from warmstart.policy import load

    try:
        fresh = load.compile_policy(installation.policy, owners={0, os.geteuid()})
    except PolicyError as error:
        if compiled_policy is None:
            raise
        return CurrentPolicy(compiled_policy, installation.compiled_policy, changed=True, problem=error)
    return CurrentPolicy(fresh, installation.policy, changed=compiled_policy is not None, problem=None)
