"""What wings add to doctor: `CHECKS` of their `checks.py`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from warmstart import wing
from warmstart.doctor.finding import Finding
from warmstart.doctor.node import Node
from warmstart.doctor.slurm import Slurm
from warmstart.doctor.store import Store


class Checks(NamedTuple):
    """The checks of a wing, by name."""

    node: Mapping[str, Callable[[Node], Iterator[Finding]]] = {}
    store: Mapping[str, Callable[[Store], Iterator[Finding]]] = {}
    slurm: Mapping[str, Callable[[Slurm], Iterator[Finding]]] = {}
    critical: Collection[str] = ()  # the names of those that can find something critical


def of_wings() -> list[Checks]:
    """Return the checks of the wings that are here."""
    return [wing.load(module).CHECKS for module in wing.with_part("checks")]
