"""What wings say of their events to those who read the audit log: `EVENTS` of their `told.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple, Protocol

from warmstart import wing
from warmstart.audit.events import Event
from warmstart.audit.line import Line


class Told(NamedTuple):
    """What one event tells. One that has an `error` is a failure of the step."""

    step: str  # whose it is
    about: str = ""  # what `explain` and `jobs` name, with the text; "": nothing for them
    text: str = ""
    counts: Mapping[str, int] = {}  # a line of reports → what is added


class ToldPart(Protocol):
    """`told.py` of a wing."""

    EVENTS: Mapping[Event, Callable[[Line], Told]]


@cache
def events() -> Mapping[str, Callable[[Line], Told]]:
    """Return how each event of the wings that are here is read."""
    return {event: tell for part in _of_wings() for event, tell in part.EVENTS.items()}


def _of_wings() -> list[ToldPart]:
    parts: list[ToldPart] = [wing.load(module) for module in wing.with_part("told")]
    return parts
