"""The policy's `launchers`: faults of its keys. Never on a warm path."""

from __future__ import annotations

from collections.abc import Iterator

from warmstart.policy.checks import apart
from warmstart.policy.document import Fault
from warmstart.policy.keys import Policy
from warmstart.wings.launchers.places import KEY, Launchers, of_policy

SECTIONS = {KEY: Launchers}
RULE_KEYS = None


def faults(policy: Policy) -> Iterator[Fault]:
    """Yield faults of the directory: it is missing, or overlaps with warmstart's own."""
    given = of_policy(policy)
    if given.lock and given.directory is None:
        yield Fault((KEY, "lock"), "needs launchers.directory, where the locks are")
    if given.directory is not None:
        yield from apart((KEY, "directory"), given.directory, policy, ("store", "workspace"))
