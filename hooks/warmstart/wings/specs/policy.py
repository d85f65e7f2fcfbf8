"""The policy's `slurmctld`: faults of its keys. Never on a warm path."""

from __future__ import annotations

from collections.abc import Iterator

from warmstart.host import wire
from warmstart.policy.checks import ACCOUNTS, not_normal, within
from warmstart.policy.document import Fault
from warmstart.policy.keys import Policy
from warmstart.wings.specs.keys import KEY, Keys

SECTIONS = {KEY: Keys}
RULE_KEYS = None


def faults(policy: Policy) -> Iterator[Fault]:
    """Yield faults of accounts that are SlurmUser's, and of a directory that others can own."""
    given = wire.from_object(Keys, policy.own[KEY])
    for account in ACCOUNTS:
        if getattr(policy, account) == given.user:
            problem = f"{given.user.name!r} is SlurmUser, who owns Slurm's state; each account needs its own"
            yield Fault((account,), problem)
    if given.spec_directory is None:
        return
    loc = (KEY, "spec_directory")
    if problem := not_normal(given.spec_directory):
        yield Fault(loc, problem)
    for path in ("store", "workspace", "cache"):
        if within(given.spec_directory, getattr(policy.paths, path)):
            owner = f"only {given.user.name} or root may own it and every directory above it"
            yield Fault(loc, f"may not be in paths.{path}: {owner}")
    if given.user.uid < 0:
        yield Fault((KEY, "user"), f"no account {given.user.name!r} on this node")
