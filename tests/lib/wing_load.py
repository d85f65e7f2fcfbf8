"""What wings add to a load run (tools/load): `LOAD` of tests/lib/wings/NAME/load.py."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from warmstart import wing

WRONG = "WRONG"  # begins what a job says of something that should not be


class Kind(NamedTuple):
    """One kind of job. In `lines` {a}, {b}, {c} are names of entries, {nap} seconds, {number} what the image has."""

    weight: int
    lines: tuple[str, ...]
    asks: str = ""  # in the comment; {image} is an image
    options: tuple[str, ...] = ()
    anywhere: bool = True  # whether a node may be named
    tasks: int = 1  # jobs that it makes: tasks of an array, components
    ends: str = "COMPLETED"


class WingLoad(NamedTuple):
    """What one wing adds."""

    rule: str  # of the policy
    kinds: Mapping[str, Kind]
    refused: Mapping[str, str]  # words of a request → the word that the refusal has
    excused: Mapping[str, frozenset[str]]  # what a job may say after one of these faults in its wave


def of_wings() -> list[WingLoad]:
    """Return those of the wings that are here."""
    here = [name for name in wing.found() if (Path(__file__).parent / "wings" / name / "load.py").exists()]
    return [import_module(f"tests.lib.wings.{name}.load").LOAD for name in here]
