"""Checks of what a node needs for containers to start from a tree (docs/wings/ready_roots.md)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

from warmstart.doctor.containers import PROGRAMS, hook_problem
from warmstart.doctor.finding import ADVICE, SKIP, WRONG, Finding, check
from warmstart.doctor.node import Node
from warmstart.doctor.slurm import ENROOT, LARGEST_SCRIPT
from warmstart.doctor.wings import Checks
from warmstart.host.files import read_small, weakness
from warmstart.paths import Installation
from warmstart.wings.ready_roots import trial

HOOK = "05-warmstart-root.sh"
# Inner words of enroot 4, by which the hook finds a container's file and root.
WORDS = ('\'runtime::_start "$@"\' "${config}" "${rootfs}"', '"${ENROOT_RUNTIME_PATH}/overlay"')
NEEDED = "use Linux 5.19 or later, and ext4 or xfs for paths.shelf; or leave out paths.shelf"


@check("node.ready-roots")
def ready_roots(node: Node) -> Iterator[Finding]:
    """Try, as nobody, all that a container needs; look for enroot's hook."""
    shelf = node.policy.paths.shelf
    if not shelf or not os.path.isdir(shelf) or weakness(os.stat(shelf), sticky=True):
        yield SKIP  # node.disks and node.permissions say what to do
        return
    tried = trial.tried(node.policy)
    if not tried.works:
        found = f"containers cannot start from a tree on this node: {tried.memory}"
        yield Finding(WRONG, found, NEEDED)
        return
    if tried.disk:
        found = f"what containers write lies in memory, not in paths.workspace: {tried.disk}"
        yield Finding(ADVICE, found, "use ext4 or xfs for paths.workspace")
    yield from hook(node.installation, ENROOT)


def hook(installation: Installation, enroot: str) -> Iterator[Finding]:
    """Check that enroot runs this release's hook, before all others."""
    directory = f"{enroot}/hooks.d"
    names = sorted(os.listdir(directory)) if os.path.isdir(directory) else []
    before = [name for name in names if name.endswith(".sh") and name < HOOK]
    if problem := hook_problem(installation, enroot, HOOK):
        yield Finding(ADVICE, f"{problem[0]}: no container may start from a tree", problem[1])
    elif before:
        found = f"{', '.join(before)} runs before {HOOK}: what it changes in a container's root is lost"
        yield Finding(WRONG, found, f"give it a name that sorts after {HOOK}")
    else:
        yield from _known(shutil.which("enroot", path=PROGRAMS) or "/usr/bin/enroot")


def _known(program: str) -> Iterator[Finding]:
    """Check that enroot still has what the hook looks for."""
    path = f"{os.path.dirname(os.path.dirname(program))}/lib/enroot/runtime.sh"
    text = read_small(path, LARGEST_SCRIPT).decode("utf-8", "replace")
    if missing := [word for word in WORDS if word not in text]:
        found = f"{HOOK} does not know this enroot, and no container starts from a tree: {path} lacks {missing[0]}"
        yield Finding(WRONG, found, "install a release of warmstart that knows it, or leave out paths.shelf")


CHECKS = Checks(node=(ready_roots,))
