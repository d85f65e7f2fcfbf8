"""Layers that imports keep on the node, so that a later import does not fetch them again. Runs as root."""

from __future__ import annotations

from typing import NamedTuple


class LayerPlace(NamedTuple):
    """Where the layers of one repository are kept, and how much a node keeps of all repositories."""

    directory: str  # absolute; root's; of all repositories
    repository: str  # a file name; the same repository fetched with other credentials has another one
    limit: int  # bytes of all repositories together
