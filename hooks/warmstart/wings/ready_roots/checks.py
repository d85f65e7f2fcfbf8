"""Checks of what a node needs for containers to start from a tree (docs/wings/ready_roots.md)."""

from __future__ import annotations

import os
from collections.abc import Iterator

from warmstart.doctor.containers import ENROOT
from warmstart.doctor.finding import ADVICE, OK, WRONG, Finding
from warmstart.doctor.node import Node
from warmstart.doctor.wings import Checks
from warmstart.wings.ready_roots import trial

HOOK = "05-warmstart-root.sh"
NEEDED = "use Linux 5.19 or later, and ext4 or xfs for paths.shelf; or leave out paths.shelf"


def ready_roots(node: Node) -> Iterator[Finding]:
    """Try, as nobody, all that a container needs; look for enroot's hook."""
    if not node.policy.paths.shelf:
        yield Finding(OK, "the policy has no paths.shelf")
        return
    tried = trial.tried(node.policy)
    if not tried.works:
        found = f"containers cannot start from a tree on this node: {tried.memory}"
        yield Finding(WRONG, found, NEEDED)
        return
    if tried.disk:
        found = f"what containers write lies in memory, not in paths.workspace: {tried.disk}"
        yield Finding(ADVICE, found, "use ext4 or xfs for paths.workspace")
    yield from hook(f"{ENROOT}/hooks.d")


def hook(directory: str) -> Iterator[Finding]:
    """Check that enroot runs the hook, before all others."""
    names = sorted(os.listdir(directory)) if os.path.isdir(directory) else []
    before = [name for name in names if name.endswith(".sh") and name < HOOK]
    if not os.access(f"{directory}/{HOOK}", os.X_OK):
        found = f"{directory}/{HOOK} is missing: no container starts from a tree"
        yield Finding(ADVICE, found, f"install {HOOK} there (docs/wings/ready_roots.md)")
    elif before:
        found = f"{', '.join(before)} runs before {HOOK}: what it changes in a container's root is lost"
        yield Finding(WRONG, found, f"give it a name that sorts after {HOOK}")
    else:
        yield Finding(OK, "containers start from the tree of their image")


CHECKS = Checks(node={"node.ready-roots": ready_roots})
