"""What wings add to maintenance: `PARTS` of their `maintenance.py`. Runs as root."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from warmstart import wing
from warmstart.session import Session


class Parts(NamedTuple):
    """Parts of a wing, by name. Each raises what it raises: its name is audited with the error, and others go on."""

    node: Mapping[str, Callable[[Session], int | None]] = {}
    store: Mapping[str, Callable[[Session], int | None]] = {}


def of_wings() -> list[Parts]:
    """Return the parts of the wings that are here."""
    return [wing.load(module).PARTS for module in wing.with_part("maintenance")]
