"""Where an installation keeps its things on a node (design, section 7).

Two installations under two prefixes share nothing: own policy, own state. Every path that two
slurmds of one host could both use carries the node's name.
"""

from __future__ import annotations

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
    def bundles(self) -> str:
        """This node's copies of the store's bundles."""
        return f"{self.root}/bundles"

    @property
    def journal(self) -> str:
        """Audit events that are not in the audit log yet."""
        return f"{self.root}/journal"
