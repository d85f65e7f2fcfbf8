"""The policy's `trees`: the key of rules, and faults. Never on a warm path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from warmstart.policy.checks import of_prefixes, of_shared
from warmstart.policy.document import Fault
from warmstart.policy.keys import Policy, Rule
from warmstart.policy.shared import SharedPath
from warmstart.wings.trees.offered import KEY, Trees, offered


class InRules(NamedTuple):
    """What rules may have."""

    trees: tuple[SharedPath, ...] = ()
    """Trees that these jobs [share](../wings/trees.md#trees-of-an-account-or-the-site). Several rules add up; of those
    that cover a tree, the last one counts. `match` may use verified attributes only."""


SECTIONS = {KEY: Trees}
RULE_KEYS = InRules


def faults(policy: Policy) -> Iterator[Fault]:
    """Yield prefixes that are the system's, or warmstart's: a job sees a copy in place of what is below one."""
    yield from of_prefixes(policy, KEY, offered(policy).prefixes)


def rule_faults(rule: Rule, policy: Policy) -> Iterator[Fault]:
    """Yield faults of shared trees."""
    yield from of_shared(rule, policy, KEY)
