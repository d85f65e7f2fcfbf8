"""What wings add to the node of tests/faults/hooks.py: `HOOKS` of tests/lib/wings/NAME/hooks.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from warmstart import wing


class WingHooks(NamedTuple):
    """Programs of a wing that Slurm runs, and what they need. {base} is the node's directory, {top} the one above."""

    policy: str = ""  # sections of the policy
    rule: str = ""  # a key of the policy's rule
    make: Callable[[Path], None] = lambda _: None  # makes the directories below that one
    acts: Mapping[str, Callable[[str], int]] = {}  # programs by name, each called with the prefix
    before: Mapping[str, str] = {}  # hook → the program that runs before it
    over: str = ""  # the program that runs when a job is over
    part: str = ""  # the directory that faults can be in, where nothing may be left of a job
    words: str = ""  # of the job's request


def of_wings() -> list[WingHooks]:
    """Return those of the wings that are here."""
    here = [name for name in wing.found() if (Path(__file__).parent / "wings" / name / "hooks.py").exists()]
    return [import_module(f"tests.lib.wings.{name}.hooks").HOOKS for name in here]
