"""Where an installation keeps its files on a node, and how long a job's TMPDIR may be. Hot path.

Two installations under two prefixes share nothing: each has its own policy and its own state. Every path that two
slurmds of one host could both use has the node's name in it.
"""

from __future__ import annotations

import os
from typing import NamedTuple

# In a run's directory, root's, 0700: what the job's view of the bundles is made of.
SEED = ".seed"

# What programs add to TMPDIR for their sockets: vLLM `/` and a UUID, 37 bytes; Python's multiprocessing
# `/pymp-XXXXXXXX/listener-XXXXXXXX`, 32.
SOCKET_NAMES = 37
# Bytes of a TMPDIR below which programs can bind sockets. A longer address is refused, by every language's library:
# `sun_path` has 108 bytes with the NUL (unix(7)).
LONGEST_TMPDIR = 107 - SOCKET_NAMES
_RUN = len("/4294967295.0a1b2c3d/tmp")  # what a run adds to WORKSPACE/NODE


def longest_node_name(workspace: str) -> int:
    """Return how many bytes a node's name may have for TMPDIR below `workspace`; less than 1 if no name fits."""
    return LONGEST_TMPDIR - _RUN - len(f"{workspace}/".encode())


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
    def is_off(self) -> bool:
        """Whether an administrator has switched warmstart off on this host."""
        return os.path.exists(self.off_switch)

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
    """What slurmctld's hooks use on the controller: the same policy, and a directory that SlurmUser owns."""

    @property
    def own(self) -> str:
        """SlurmUser's directory, 0700, made by an administrator; without it hooks compile the policy each time.

        Not in `var`: root trusts what is in there.
        """
        return f"{self.var}-slurmctld"

    @property
    def compiled_policy(self) -> str:
        """SlurmUser's own: it can't read root's."""
        return f"{self.own}/policy.json"

    @property
    def journal(self) -> str:
        """Audit events that are not in the controller's log yet."""
        return f"{self.own}/journal"

    @property
    def audit(self) -> str:
        """The controller's own audit log: SlurmUser can't write root's."""
        return f"{self.own}/audit.jsonl"

    @property
    def pyslurm(self) -> str:
        """The directory that may hold pyslurm."""
        return f"{self.prefix}/lib/warmstart/slurm"


class NodePaths(NamedTuple):
    """What one node keeps; root's directories, 0700 unless another mode is given."""

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
        """Records of runs whose harvest is deferred."""
        return f"{self.root}/deferred"

    @property
    def maintenance(self) -> str:
        """Bundles that maintenance has unpacked, for one process at a time."""
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
