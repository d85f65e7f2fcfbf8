"""Bundles that did not come in a prolog's time: this node fetches them off the clock of jobs (docs/adr/index.md, 34).

While an errand for it waits, no prolog spends time on a bundle, and what has come of it stays. Owners are scopes.
"""

from __future__ import annotations

import os

from warmstart.errand import Asker, Errands, Kind
from warmstart.lean import NamedTuple
from warmstart.paths import NodePaths

FETCHES = Kind("fetches", most=16, backoff_s=60.0)


class Wanted(NamedTuple):
    """A bundle that this node is to fetch. The key of its errand is its hash."""

    sha256: str
    size: int  # bytes
    scope: str
    profile: str
    namespace: str
    bundle: str
    job: Asker


def beside(directory: str) -> Errands:
    """Return what is wanted on the node that keeps its copies in a directory (`NodePaths.bundles`)."""
    return Errands(NodePaths(os.path.dirname(directory), ""), FETCHES)
