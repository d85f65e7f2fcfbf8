"""The policy's `slurmctld` as hooks read it. Hot path where a rule needs a job's spec."""

from __future__ import annotations

from warmstart.host import wire
from warmstart.host.identity import Identity
from warmstart.lean import NamedTuple
from warmstart.policy.keys import Duration, Policy, account

KEY = "slurmctld"
Path = str
AnyAccount = Identity


class Keys(NamedTuple):
    """Optional hooks on the controller tell nodes what slurmd does not ([how](../wings/specs.md))."""

    spec_directory: Path | None = None
    """Directory on the shared file system where the hooks write job specs. `user` owns it, mode 0755. `null`: nodes
    look for no specs."""
    user: AnyAccount = account("slurm")
    """SlurmUser. Specs of any other owner are ignored."""
    deadline: Duration = 2
    """How long a job waits for slurmctld's answer, and a node's prolog for the spec."""
    conf: Path | None = None
    """`slurm.conf` on the controller, if Slurm does not find it by itself."""

    @property
    def directory(self) -> str:
        """The directory of the specs."""
        return self.spec_directory or ""


def of(policy: Policy) -> Keys | None:
    """Return what the policy says; None if there are no specs."""
    found = policy.own.get(KEY)
    return None if found is None else wire.from_object(Keys, found)
