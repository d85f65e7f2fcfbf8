"""Where an installation keeps its things on a node.

Two installations under two prefixes share nothing: own policy, own state. Every path that two
slurmds of one host could both use carries the node's name.
"""

from __future__ import annotations

import os
from typing import NamedTuple


class Installation(NamedTuple):
    """One installed warmstart, known by its prefix."""

    prefix: str

    @property
    def etc(self) -> str:
        """Directory of policy.yaml, conf.d/ and the `off` switch."""
        return "/etc/warmstart" if self.prefix == "/usr" else f"{self.prefix}/etc/warmstart"

    @property
    def var(self) -> str:
        """Directory of everything warmstart writes for itself on this host."""
        return "/var/lib/warmstart" if self.prefix == "/usr" else f"{self.prefix}/var/lib/warmstart"

    @property
    def policy(self) -> str:
        """The site's policy."""
        return f"{self.etc}/policy.yaml"

    @property
    def off_switch(self) -> str:
        """A file whose mere presence makes every hook do nothing."""
        return f"{self.etc}/off"

    @property
    def compiled_policy(self) -> str:
        """The last good policy in the form that hooks read."""
        return f"{self.var}/policy.json"

    def node(self, node: str) -> NodePaths:
        """Return the directories of one node (slurmd) of this host."""
        return NodePaths(f"{self.var}/{node}")

    def nodes(self) -> list[str]:
        """Return the nodes of this host that have had hooks: there may be several slurmds."""
        try:
            names = sorted(os.listdir(self.var))
        except FileNotFoundError:
            return []
        return [name for name in names if os.path.isdir(self.node(name).state)]


class Controller(Installation):
    """What slurmctld's hooks have on the controller: the same policy, and a directory of SlurmUser's own."""

    @property
    def own(self) -> str:
        """SlurmUser's, 0700; an administrator makes it. Without it hooks compile the policy each time.

        Not in `var`: what lies there root believes.
        """
        return f"{self.var}-slurmctld"

    @property
    def compiled_policy(self) -> str:
        """SlurmUser can't read root's, and does not need to."""
        return f"{self.own}/policy.json"

    @property
    def journal(self) -> str:
        """Audit events that are not in the controller's log yet."""
        return f"{self.own}/journal"

    @property
    def audit(self) -> str:
        """The controller's own audit log: root's is closed to SlurmUser."""
        return f"{self.own}/audit.jsonl"

    @property
    def pyslurm(self) -> str:
        """Where pyslurm is looked for."""
        return f"{self.prefix}/lib/warmstart/slurm"


SEED = ".seed"  # in a run's directory, root's, 0700: what the job's view of the bundles is made of


class NodePaths(NamedTuple):
    """What one node keeps; all are root's, 0700 unless said."""

    root: str  # 0755

    @property
    def state(self) -> str:
        """`<jobid>/record.json`: what the prolog tells the epilog."""
        return f"{self.root}/state"

    @property
    def view(self) -> str:
        """`<jobid>/` (the job's uid, 0500): what its task prolog reads. Parent 0711."""
        return f"{self.root}/view"

    @property
    def stage(self) -> str:
        """Harvested bytes on their way to the validator."""
        return f"{self.root}/stage"

    @property
    def spool(self) -> str:
        """Packed bundles that the store did not take yet."""
        return f"{self.root}/spool"

    @property
    def deferred(self) -> str:
        """Records of runs that are over and whose caches maintenance still harvests."""
        return f"{self.root}/deferred"

    @property
    def maintenance(self) -> str:
        """Bundles that maintenance of the store has unpacked, by one process at a time."""
        return f"{self.root}/maintenance"

    @property
    def bundles(self) -> str:
        """This node's copies of the store's bundles."""
        return f"{self.root}/bundles"

    @property
    def layers(self) -> str:
        """Where those copies are mounted that jobs were seeded from."""
        return f"{self.root}/layers"

    @property
    def uses(self) -> str:
        """When this node last told the store that it uses an image, one empty file each."""
        return f"{self.root}/uses"

    @property
    def ports(self) -> str:
        """The host's ledger of reserved ports: all its nodes share them."""
        return f"{os.path.dirname(self.root)}/ports"

    @property
    def journal(self) -> str:
        """Audit events that are not in the audit log yet."""
        return f"{self.root}/journal"
