"""What wings add to doctor: `CHECKS` of their `checks.py`."""

from __future__ import annotations

from typing import NamedTuple

from warmstart import wing
from warmstart.doctor.finding import Check
from warmstart.doctor.node import Node
from warmstart.doctor.slurm import Slurm


class Checks(NamedTuple):
    """The checks of a wing."""

    node: tuple[Check[Node], ...] = ()
    slurm: tuple[Check[Slurm], ...] = ()


def of_wings() -> list[Checks]:
    """Return the checks of the wings that are here."""
    return [wing.load(module).CHECKS for module in wing.with_part("checks")]
