"""Nodes of this host that never return: pods and machines leave directories behind when they get other names."""

from __future__ import annotations

import os
import time

from warmstart.errors import WarmstartError
from warmstart.host.deadline import after
from warmstart.host.files import names_in
from warmstart.images.unpacked import shelf_of
from warmstart.maintenance import orphans
from warmstart.paths import Installation, NodePaths
from warmstart.queue import waiting
from warmstart.session import Session, open_session
from warmstart.slurm.facts import Access
from warmstart.slurm.slurmctld import QUERY_S, Slurmctld

GONE_S = 30 * 86400.0  # since the last hook


def remove_gone(installation: Installation, slurm_conf: str) -> list[WarmstartError]:
    """Remove what nodes have left on which nothing waits, no hook ran for a month, and whose name slurmctld forgot.

    Other nodes of the host are left alone, and so are all if slurmctld does not answer. Return what failed. Raises the
    errors of `open_session`.
    """
    idle = [node for node in installation.nodes() if _is_idle(installation.node(node))]
    if not idle:
        return []
    with open_session(installation, "maintain") as session:
        slurmctld = Slurmctld(Access(session.policy.paths.scontrol, slurm_conf, installation.slurm_libraries))
        for node in idle:
            with session.isolated(f"node {node}"):
                if not slurmctld.knows_node(node, after(QUERY_S)):
                    _remove(session, node)
        return session.failures


def _is_idle(paths: NodePaths) -> bool:
    """Return whether a node's hooks left nothing to do, and made and removed no run for a month."""
    if any(map(names_in, (paths.state, paths.stage))) or any(waiting(paths).values()):
        return False
    last = max(os.stat(path).st_mtime for path in (paths.began, paths.state) if os.path.exists(path))
    return last < time.time() - GONE_S


def _remove(session: Session, node: str) -> None:
    """Remove a node's directories; `began` goes last, so that the node is found again if this process dies."""
    paths, shelf = session.installation.node(node), os.path.dirname(shelf_of(session.policy, node))
    for directory in (shelf, paths.runtime):
        if os.path.isdir(directory):
            orphans.remove(*os.path.split(directory))
    for name in os.listdir(paths.root):
        if name != os.path.basename(paths.began):
            orphans.remove(paths.root, name)
    orphans.remove(*os.path.split(paths.root))
