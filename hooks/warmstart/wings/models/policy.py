"""The policy's `models`: the key of rules, and faults. Never on a warm path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from warmstart.policy.checks import of_prefixes, of_shared
from warmstart.policy.document import Fault
from warmstart.policy.keys import Policy, Rule
from warmstart.policy.shared import SharedPath
from warmstart.policy.units import format_size
from warmstart.wings.models.offered import KEY, Models, offered

_SLOWEST = 1 << 20


class InRules(NamedTuple):
    """What rules may have."""

    models: tuple[SharedPath, ...] = ()
    """Models that these jobs [share](../wings/models.md#whose-copies). Several rules add up; of those that cover a
    model, the last one counts. `match` may use verified attributes only."""


SECTIONS = {KEY: Models}
RULE_KEYS = InRules


def faults(policy: Policy) -> Iterator[Fault]:
    """Yield prefixes that are the system's, or warmstart's; that no disk is named; a rate that ends no copy."""
    given = offered(policy)
    yield from of_prefixes(policy, KEY, given.prefixes)
    if given.prefixes and not policy.paths.shelf:
        yield Fault((KEY, "prefixes"), "needs paths.shelf, the disk where copies lie")
    if given.rate < _SLOWEST:
        yield Fault((KEY, "rate"), f"{format_size(given.rate)} is too low; at least {format_size(_SLOWEST)}")


def rule_faults(rule: Rule, policy: Policy) -> Iterator[Fault]:
    """Yield faults of shared models."""
    yield from of_shared(rule, policy, KEY)
