"""Checks of what a node needs to show jobs copies of their models (docs/wings/models.md)."""

from __future__ import annotations

import os
from collections.abc import Iterator

from warmstart.doctor import prefixes
from warmstart.doctor.finding import ADVICE, SKIP, Finding, check
from warmstart.doctor.node import Node, existing
from warmstart.doctor.wings import Checks
from warmstart.policy.units import format_size
from warmstart.wings.models.offered import KEY, WAYS, offered


@check("node.models")
def models(node: Node) -> Iterator[Finding]:
    """Check the directories of `models.prefixes`, that copies can be shown, and that their disk has room."""
    given = offered(node.policy)
    if not given.prefixes:
        yield SKIP
        return
    yield from prefixes.faults(KEY, given.prefixes)
    if (way := node.policy.constant_path) not in WAYS:
        found = f"constant_path is {way}, which shows no job copies of models: none are made"
        yield Finding(ADVICE, found, f"set it to one of {', '.join(WAYS)}")
    disk = os.statvfs(existing(node.policy.paths.shelf or "/"))
    size = disk.f_blocks * disk.f_frsize
    if size < given.keep:
        found = f"models.keep is {format_size(given.keep)}, and the disk of paths.shelf has {format_size(size)}"
        yield Finding(ADVICE, found, "lower models.keep: the disk is shared with images and caches")


CHECKS = Checks(node=(models,))
