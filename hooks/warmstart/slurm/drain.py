"""Tell Slurm why a node drains, on the failure path only.

Slurm's own reason is "Prolog error" whatever happened. One short call with a deadline, before the hook
exits non-zero; slurmctld keeps the reason of a node that is drained already (`drain_nodes`,
src/slurmctld/node_mgr.c). If it fails, the exit status still drains the node.
"""

from __future__ import annotations

from warmstart.errors import WarmstartError
from warmstart.host.deadline import after
from warmstart.host.process import run

DRAIN_SECONDS = 5.0
LONGEST_REASON = 200


def drain_node(scontrol: str, node: str, reason: str, slurm_conf: str) -> bool:
    """Drain `node` with our reason; return whether Slurm took it."""
    text = f"warmstart: {reason}"[:LONGEST_REASON]
    env = {"SLURM_CONF": slurm_conf} if slurm_conf else {}
    argv = [scontrol, "update", f"nodename={node}", "state=drain", f"reason={text}"]
    try:
        return run(argv, deadline=after(DRAIN_SECONDS), env=env).status == 0
    except WarmstartError:
        return False
