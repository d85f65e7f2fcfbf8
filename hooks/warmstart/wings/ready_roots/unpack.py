"""Whether an unpacked image is of use on this node: nobody waits for one from which no container could start."""

from __future__ import annotations

from warmstart.paths import NodePaths
from warmstart.policy.keys import Policy
from warmstart.wings.ready_roots import trial

CANNOT = "containers cannot start from trees on this node (warmstart doctor)"


def problem(policy: Policy, paths: NodePaths) -> str:
    """Return why not, "" if it is of use. Raises `OSError`."""
    return "" if trial.of_this_boot(policy, paths) else CANNOT
