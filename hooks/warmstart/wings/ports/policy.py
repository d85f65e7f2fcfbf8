"""The policy's `rules[].rendezvous`: the key, and its faults. Never on a warm path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from warmstart.host import wire
from warmstart.policy.checks import claimed
from warmstart.policy.document import Fault
from warmstart.policy.keys import Policy, Rule
from warmstart.wings.ports.ledger import ephemeral_overlap
from warmstart.wings.ports.step import KEY, Rendezvous

_MOST = 64  # ports of a job


class InRules(NamedTuple):
    """What rules may have."""

    rendezvous: Rendezvous | None = None
    """`MASTER_ADDR` and `MASTER_PORT` for jobs of several nodes, and for jobs that ask for ports. The last matching
    rule's counts, as a whole. `match` may use verified attributes only."""


SECTIONS: dict[str, object] = {}
RULE_KEYS = InRules


def rule_faults(rule: Rule, policy: Policy) -> Iterator[Fault]:
    """Yield faults of a rendezvous: ports that the kernel gives to clients, too few ports, a claimed attribute."""
    if KEY not in rule.own:
        return
    given = wire.from_object(Rendezvous, rule.own[KEY])
    low, high = given.ports
    if overlap := ephemeral_overlap(low, high):
        problem = (
            f"overlaps this node's net.ipv4.ip_local_port_range, {overlap[0]}-{overlap[1]}, used for client sockets"
        )
        yield Fault((KEY, "ports"), problem)
    if given.per_job > _MOST:
        yield Fault((KEY, "per_job"), f"{given.per_job} is too high; at most {_MOST}")
    if high - low < given.per_job:
        yield Fault((KEY, "ports"), f"has fewer ports than one job may request (per_job: {given.per_job})")
    if given.per_user <= given.per_job:
        yield Fault((KEY, "per_user"), f"must be more than per_job, {given.per_job}: one job may have as many")
    yield from claimed(policy, rule.match, KEY)
