"""Keys of a rule: what the jobs that it matches get."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from warmstart.policy.model.match import Match
from warmstart.policy.model.scalars import (
    Account,
    Duration,
    Label,
    Ports,
    Reference,
    Scope,
    Section,
    Value,
    Variable,
    default,
)


class Publish(Section):
    """Who may publish above the user scope."""

    users: Annotated[list[Account], Field(min_length=1)] = Field(
        description="User names, no patterns; each must exist on the node. "
        "Never an account that runs code which nobody has reviewed."
    )


class Rendezvous(Section):
    """One address and port for all nodes of a job; docs/rendezvous.md has what it promises."""

    ports: Ports = Field(
        description="FIRST-LAST: the head node's TCP ports to reserve from; outside of its ip_local_port_range."
    )
    per_job: int = Field(default=8, ge=0, le=64, description="Ports that a job may ask for besides MASTER_PORT.")
    per_user: int = Field(default=64, ge=1, description="Ports of one head node that one user's jobs may hold.")
    shared_nodes: bool = Field(
        default=False,
        description="Also where the job does not have the head node for itself, though a neighbour can take "
        "the port before the job binds it.",
    )
    wait: Duration = default("20s", "How long the other nodes wait for the head node's answer.")
    required: bool = Field(
        default=False, description="A job that can't have it fails with a reason, and else runs without."
    )


class Rule(Section):
    """What some jobs get. Rules apply in order; later ones add to earlier ones."""

    name: Label = Field(description="Shown by `warmstart plan` and in the audit; unique.")
    match: Match = Field(default_factory=Match, description="Which jobs the rule is for; without it, every job.")
    images: list[Reference] = Field(default_factory=list, description="Images that are ready before the job starts.")
    profiles: list[str] = Field(default_factory=list, description="Tools whose caches are seeded and harvested.")
    scope: Scope | None = Field(
        default=None,
        description="The widest scope the job is seeded from. Of the matching rules the last that has one holds; "
        "`user` if none has. Above `user`: verified attributes only.",
    )
    publish: Publish | None = Field(
        default=None,
        description="Who may publish into this rule's scope. Needs `scope` and `match.partition` in the same rule.",
    )
    env: dict[Variable, Value] = Field(
        default_factory=dict,
        description="Environment variables for the job; a later rule's value replaces an earlier one's.",
    )
    override: list[Variable] = Field(
        default_factory=list,
        description="Variables that the user can't set for himself in these jobs: what warmstart sets holds.",
    )
    rendezvous: Rendezvous | None = Field(
        default=None,
        description="MASTER_ADDR and MASTER_PORT for jobs of several nodes, and for those that ask for ports. "
        "A later rule's replaces an earlier one's. Verified attributes only.",
    )
