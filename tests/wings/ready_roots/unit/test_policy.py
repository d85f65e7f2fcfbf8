"""The policy's `ready_roots`: used where nodes keep unpacked images."""

from __future__ import annotations

from tests.support.policy_site import Compile
from warmstart.policy.compiled import Policy
from warmstart.wings.ready_roots.settings import settings

STORE = "version: 1\npaths: {store: /shared/warmstart"


def is_used(policy: Policy) -> bool:
    """Return whether prologs load the wing."""
    return next(known.used for known in policy.wings if known.name == "ready_roots")


def test_it_is_used_where_there_is_a_shelf(compiled_of: Compile) -> None:
    """And nowhere else, whatever the section says."""
    policy = compiled_of(f"{STORE}, shelf: /var/tmp/shelf}}\nready_roots: {{wait: 30s}}\n")
    assert (is_used(policy), settings(policy).wait) == (True, 30)
    assert settings(compiled_of(f"{STORE}, shelf: /var/tmp/shelf}}\n")).wait == 120
    assert not is_used(compiled_of(f"{STORE}}}\nready_roots: {{wait: 30s}}\n"))
