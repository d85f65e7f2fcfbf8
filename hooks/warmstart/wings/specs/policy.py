"""The policy's `slurmctld`: faults of its keys. Never on a warm path."""

from __future__ import annotations

from collections.abc import Iterator

from warmstart.host import wire
from warmstart.policy.checks import ACCOUNTS, apart
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
    yield from apart((KEY, "spec_directory"), given.spec_directory, policy, ("store", "workspace", "cache"))
    if given.user.uid < 0:
        yield Fault((KEY, "user"), f"no account {given.user.name!r} on this node")
