"""Which jobs a key is for."""

from __future__ import annotations

from pydantic import Field

from warmstart.policy.model.scalars import Globs, Section


class Match(Section):
    """Which jobs a rule is for: every key given must match; of a list, one pattern. Globs, case-sensitive."""

    partition: Globs | None = Field(default=None, description="The job's partition. Verified.")
    account: Globs | None = Field(
        default=None, description="The job's account. Claimed, unless trust.account is enforced."
    )
    user: Globs | None = Field(default=None, description="The job's user name. Verified.")
    group: Globs | None = Field(
        default=None, description="A group that the user is in, as this node's own NSS says. Verified."
    )
    node: Globs | None = Field(default=None, description="The node's Slurm name. Verified.")
    constraint: Globs | None = Field(default=None, description="The job's --constraint, as it was given. Claimed.")
    qos: Globs | None = Field(
        default=None,
        description="The job's QOS; needs the controller's spec before Slurm 26.05. "
        "Claimed, unless trust.qos is enforced.",
    )
    job_name: Globs | None = Field(default=None, description="The job's name; needs the controller's spec. Claimed.")
    array: Globs | None = Field(
        default=None,
        description="JOBID_TASKID of an array's task, `*` for any; needs the controller's spec. Claimed.",
    )
