"""The policy's `prefetch`: faults of its key. Never on a warm path."""

from __future__ import annotations

from collections.abc import Iterator

from warmstart.policy.checks import not_allowed
from warmstart.policy.document import Fault
from warmstart.policy.keys import Policy
from warmstart.wings.prefetch.work import KEY, Prefetch, offered

SECTIONS = {KEY: Prefetch}
RULE_KEYS = None


def faults(policy: Policy) -> Iterator[Fault]:
    """Yield the images that are of no registry of the policy."""
    for number, problem in not_allowed(offered(policy).images, policy):
        yield Fault((KEY, "images", number), problem)
