"""The policy in force, for the command line. Reads as root or as a user, and writes nothing."""

from __future__ import annotations

import os
from typing import NamedTuple

from warmstart.errors import PolicyError
from warmstart.paths import Installation
from warmstart.policy import compiled, trust
from warmstart.policy.compiled import Policy
from warmstart.policy.invalid import PolicyUnreadable


def hint_for(error: PolicyError) -> str:
    """Return the hint for a policy that could not be read. Users get another one than root."""
    if isinstance(error, PolicyUnreadable) and os.geteuid() != 0:
        return "run the command as root, or ask the administrators to make the policy readable for all"
    return error.hint


class CurrentPolicy(NamedTuple):
    """The policy that the next hook will use."""

    policy: Policy
    origin: str  # the file from which it was read
    changed: bool  # whether the site's files are newer than the readable compiled form
    problem: PolicyError | None  # why newer files are not in force


def current_policy(installation: Installation) -> CurrentPolicy:
    """Return the policy in force, its `trust` as far as it is proven. Raises `PolicyError` if there is no valid one.

    For a user who may not read the hooks' compiled form the site's files are compiled in memory.
    """
    found = _current(installation)
    return found._replace(policy=trust.proven(found.policy, installation.enforcement))


def _current(installation: Installation) -> CurrentPolicy:
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
