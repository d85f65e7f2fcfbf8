"""When a policy uses the wing."""

from __future__ import annotations

from tests.lib.policy_site import Compile
from warmstart.policy.compiled import Policy

STORE = "version: 1\npaths: {store: /shared/warmstart"


def is_used(policy: Policy) -> bool:
    """Return whether prologs load the wing."""
    return next(known.used for known in policy.wings if known.name == "ready_roots")


def test_it_is_used_where_there_is_a_shelf(compiled_of: Compile) -> None:
    """And nowhere else."""
    assert is_used(compiled_of(f"{STORE}, shelf: /var/tmp/shelf}}\n"))
    assert not is_used(compiled_of(f"{STORE}}}\n"))
