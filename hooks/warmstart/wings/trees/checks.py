"""Checks of what a node needs to show jobs their trees (docs/wings/trees.md)."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from warmstart.doctor import prefixes
from warmstart.doctor.finding import ADVICE, SKIP, WRONG, Finding, check
from warmstart.doctor.node import Node, existing
from warmstart.doctor.wings import Checks
from warmstart.host import linux
from warmstart.policy.units import format_size
from warmstart.wings.trees.offered import KEY, WAYS, offered


@check("node.trees")
def trees(node: Node) -> Iterator[Finding]:
    """Check the kernel, the directories of `trees.prefixes`, and the room for packing a tree."""
    given = offered(node.policy)
    if not given.prefixes:
        yield SKIP
        return
    yield from prefixes.faults(KEY, given.prefixes)
    if not _has_mount_setattr():
        yield Finding(WRONG, "this kernel cannot show a job its tree", "use Linux 5.12 or later")
    if (way := node.policy.constant_path) not in WAYS:
        found = f"constant_path is {way}, which shows no job a packed copy: trees are never packed"
        yield Finding(ADVICE, found, f"set it to one of {', '.join(WAYS)}")
    if given.max_size > given.keep:
        found = f"trees.max_size is above trees.keep ({format_size(given.keep)}), which no packed copy may exceed"
        yield Finding(ADVICE, found, "raise trees.keep, or lower trees.max_size")
    disk = os.statvfs(existing(node.installation.var))
    most = disk.f_bavail * disk.f_frsize // 2
    if most < given.max_size:
        found = f"a tree of more than {format_size(most)} is not packed on this node, for want of space"
        yield Finding(ADVICE, found, f"free space where {node.installation.var} is, or lower trees.max_size")


def _has_mount_setattr() -> bool:
    """Return whether the kernel has what restricts a mount: else it would find this descriptor to be none."""
    try:
        linux.restrict(-1)
    except OSError as error:
        return error.errno != errno.ENOSYS
    return True


CHECKS = Checks(node=(trees,))
