"""Runs that are over and of which something is left on a node."""

from __future__ import annotations

import os
from pathlib import Path

from warmstart.errand import Errand, Errands, Kind
from warmstart.harvest import deferred
from warmstart.harvest.deferred import DeferredHarvest
from warmstart.paths import NodePaths


def runs_left(paths: NodePaths, kind: Kind) -> list[DeferredHarvest]:
    """Return the runs that are to be harvested or removed, oldest first."""
    found = (deferred.read(paths, kind, errand) for errand in Errands(paths, kind).all())
    return sorted((item for item in found if item), key=lambda item: (item.since, item.name))


def damage(paths: NodePaths, kind: Kind, run: str, content: bytes = b"{") -> Path:
    """Write an errand for a run that nobody can read, in place of what there is of it; return its path."""
    errands = Errands(paths, kind)
    path = Path(errands.directory, (errands.find(run) or Errand(str(os.getuid()), 0, 0, run)).name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path
