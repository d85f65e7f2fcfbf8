"""The policy's `rules[].rendezvous`: its keys, their faults, and the form that the step reads. Never on a warm path."""

from __future__ import annotations

from collections.abc import Iterator

from warmstart.host.wire import Json
from warmstart.policy.checks import FindUser, claimed
from warmstart.policy.document import Fault
from warmstart.policy.schema import Duration, PolicyModel, Ports, Rule, Section, key, required
from warmstart.wings.ports import step
from warmstart.wings.ports.ledger import ephemeral_overlap


class Rendezvous(Section):
    """One address and ports for all nodes of a job ([ports](../wings/ports.md))."""

    ports: Ports = required(
        "First and last TCP port of the range to reserve from, both included, 1024 or higher and outside "
        "of the head node's `ip_local_port_range`. All rules may use the same range."
    )
    per_job: int = key(
        8, "Ports that a job may ask for besides `MASTER_PORT`. A job that asks for more is refused.", ge=0, le=64
    )
    per_user: int = key(64, "Ports of one head node that the jobs of one user may hold at the same time.", ge=1)
    shared_nodes: bool = key(
        False,
        "Reserve ports also on nodes that the job shares, although a neighbour can take the port before "
        "the job binds it.",
    )
    wait: Duration = key(
        "20s",
        "How long the other nodes wait for the head node's answer. It is part of the 20 s that a prolog has for "
        "everything without a budget of its own.",
    )
    required: bool = key(
        False, "A job that cannot have its ports fails with a reason. If false, it runs without, with a notice."
    )


SECTIONS: dict[str, type[Section]] = {}
RULE_KEYS = {
    step.KEY: (
        Rendezvous | None,
        key(
            None,
            "`MASTER_ADDR` and `MASTER_PORT` for jobs of several nodes, and for jobs that ask for ports. The "
            "last matching rule's counts, as a whole. `match` may use verified attributes only.",
        ),
    )
}


def faults(model: PolicyModel, find_user: FindUser) -> Iterator[Fault]:  # noqa: ARG001 - the shape of all wings'
    """Yield nothing: no section is this wing's."""
    yield from ()


def rule_faults(rule: Rule, model: PolicyModel, find_user: FindUser) -> Iterator[Fault]:  # noqa: ARG001 - as above
    """Yield faults of a rendezvous: ports that the kernel gives to clients, too few ports, a claimed attribute."""
    given = _given(rule)
    if given is None:
        return
    low, high = given.ports
    if overlap := ephemeral_overlap(low, high):
        problem = (
            f"overlaps this node's net.ipv4.ip_local_port_range, {overlap[0]}-{overlap[1]}, used for client sockets"
        )
        yield Fault((step.KEY, "ports"), problem)
    if high - low < given.per_job:
        yield Fault((step.KEY, "ports"), f"has fewer ports than one job may request (per_job: {given.per_job})")
    if given.per_user <= given.per_job:
        yield Fault((step.KEY, "per_user"), f"must be more than per_job, {given.per_job}: one job may have as many")
    yield from claimed(model, rule.match, step.KEY, "user, group or partition")


def of_policy(model: PolicyModel, find_user: FindUser) -> dict[str, Json]:  # noqa: ARG001 - as above
    """Return nothing: no section is this wing's."""
    return {}


def of_rule(rule: Rule, find_user: FindUser) -> dict[str, Json]:  # noqa: ARG001 - as above
    """Return the rule's rendezvous."""
    given = _given(rule)
    return {step.KEY: given.model_dump(mode="json")} if given else {}


def _given(rule: Rule) -> Rendezvous | None:
    given = getattr(rule, step.KEY)
    return given if isinstance(given, Rendezvous) else None
