"""Who keeps a node: at most one pod of those that share its directory (docs/guides/kubernetes.md)."""

from __future__ import annotations

import os

from warmstart.errors import ResourceError
from warmstart.host import files
from warmstart.paths import NodePaths

KEPT = "kept"  # a lock of this pod's


class NodeOfAnotherPod(ResourceError):
    """A pod that lives keeps the node. This one sees neither its mounts nor its step daemons."""

    code = "node-of-another-pod"
    template = "node {node} is kept by another pod, which is alive and has its state in {directory}, too"
    hint = "give each pod a directory of its own for warmstart's state (docs/guides/kubernetes.md)"


def keep(paths: NodePaths) -> tuple[int, int] | None:
    """Keep a node for as long as the descriptors that are returned stay open; None if another process keeps it.

    They have two locks: pods that share the node's directory see one of them, and no other pod sees the one in /run.
    """
    locks = files.open_lock(paths.locks, KEPT), os.open(paths.kept, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    if all(map(files.try_flock, locks)):
        return locks
    for lock in locks:
        os.close(lock)
    return None


def require_keeper(paths: NodePaths, node: str) -> None:
    """Raise `NodeOfAnotherPod` if a process of another pod keeps a node. With systemd's timers nobody does."""
    if files.is_locked(paths.kept) and not files.is_locked(f"{paths.locks}/{KEPT}"):
        raise NodeOfAnotherPod(node=node, directory=os.path.dirname(paths.root))
