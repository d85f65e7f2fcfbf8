"""Checks of what a node needs to show jobs their trees (docs/wings/trees.md)."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator

from warmstart.doctor.finding import ADVICE, OK, UNKNOWN, WRONG, Finding
from warmstart.doctor.node import Node, existing
from warmstart.doctor.store import LOCAL
from warmstart.doctor.wings import Checks
from warmstart.errors import WarmstartError
from warmstart.host import linux
from warmstart.host.deadline import after
from warmstart.host.namespaces import mount_of
from warmstart.policy.units import format_size
from warmstart.wings.trees.client import real_path
from warmstart.wings.trees.offered import WAYS, offered

SECONDS = 5.0  # for each prefix


def trees(node: Node) -> Iterator[Finding]:
    """Check the kernel, the directories of `trees.prefixes`, and the room for packing a tree."""
    given = offered(node.policy)
    if not given.prefixes:
        yield Finding(OK, "the policy offers no trees")
        return
    findings = [finding for prefix in given.prefixes for finding in _prefix(prefix)]
    if not _has_mount_setattr():
        findings.append(Finding(WRONG, "this kernel cannot show a job its tree", "use Linux 5.12 or later"))
    if (way := node.policy.constant_path) not in WAYS:
        found = f"constant_path is {way}, which shows no job a packed copy: trees are never packed"
        findings.append(Finding(ADVICE, found, f"set it to one of {', '.join(WAYS)}"))
    if given.max_size > given.keep:
        found = f"trees.max_size is above trees.keep ({format_size(given.keep)}), which no packed copy may exceed"
        findings.append(Finding(ADVICE, found, "raise trees.keep, or lower trees.max_size"))
    disk = os.statvfs(existing(node.installation.var))
    most = disk.f_bavail * disk.f_frsize // 2
    if most < given.max_size:
        found = f"a tree of more than {format_size(most)} is not packed on this node, for want of space"
        yield Finding(ADVICE, found, f"free space where {node.installation.var} is, or lower trees.max_size")
    yield from findings or [Finding(OK, "jobs may have trees below " + ", ".join(given.prefixes))]


def _has_mount_setattr() -> bool:
    """Return whether the kernel has what restricts a mount: else it would find this descriptor to be none."""
    try:
        linux.restrict(-1)
    except OSError as error:
        return error.errno != errno.ENOSYS
    return True


def _prefix(prefix: str) -> Iterator[Finding]:
    try:
        real = real_path(prefix, after(SECONDS))
    except PermissionError:
        return  # root may be nobody there, and the jobs' users are not
    except WarmstartError as error:
        yield Finding(UNKNOWN, str(error), "look at the file server, and at the network")
        return
    except OSError as error:
        found = f"trees.prefixes: {prefix}: {error.strerror}: no job gets a tree there"
        yield Finding(WRONG, found, "mount the file system, or correct the path")
        return
    mounted = mount_of(real)
    if real != prefix:
        found = f"trees.prefixes: {prefix} leads to {real}: no job gets a tree there"
        yield Finding(WRONG, found, f"write {real}")
    elif mounted.kind in LOCAL:
        found = f"trees.prefixes: {prefix} is on {mounted.kind} ({mounted.point}), a disk of this node's own"
        yield Finding(ADVICE, found, "leave it out: packed copies save nothing there")


CHECKS = Checks(node={"node.trees": trees})
