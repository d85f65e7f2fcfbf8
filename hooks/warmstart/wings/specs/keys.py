"""The policy's `slurmctld` as hooks read it. Hot path where a rule needs a job's spec."""

from __future__ import annotations

from warmstart.host import wire
from warmstart.host.identity import Identity
from warmstart.lean import NamedTuple
from warmstart.policy.compiled import Policy

KEY = "slurmctld"


class Keys(NamedTuple):
    """The controller's hooks and their specs."""

    spec_directory: str
    user: Identity  # owner of the specs
    deadline: int  # seconds
    conf: str | None  # path of slurm.conf


def of(policy: Policy) -> Keys | None:
    """Return what the policy says; None if there are no specs."""
    found = policy.own.get(KEY)
    return None if found is None else wire.from_object(Keys, found)
