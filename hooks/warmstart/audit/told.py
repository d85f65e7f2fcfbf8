"""What wings say of their events to those who read the audit log: `EVENTS` and `METRICS` of their `told.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import NamedTuple, Protocol

from warmstart import wing
from warmstart.audit.events import Event
from warmstart.audit.line import Line


class Metric(NamedTuple):
    """A counter or, with `bounds`, a histogram. A counter's exposed name ends in `_total`."""

    name: str
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()  # upper bounds in seconds
    zeros: tuple[tuple[str, ...], ...] = ()  # labels with a value from the start, so that the first increase is seen


class Told(NamedTuple):
    """What one event tells. One that has an `error` is a failure of the step."""

    step: str  # whose it is
    about: str = ""  # what `explain` and `jobs` name, with the text; "": nothing for them
    text: str = ""
    counts: Mapping[tuple[str, tuple[str, ...]], float] = {}  # name of a metric and its labels → what is added


class ToldPart(Protocol):
    """`told.py` of a wing."""

    EVENTS: Mapping[Event, Callable[[Line], Told]]
    METRICS: Sequence[Metric]


@cache
def events() -> Mapping[str, Callable[[Line], Told]]:
    """Return how each event of the wings that are here is read."""
    return {event: tell for part in _of_wings() for event, tell in part.EVENTS.items()}


def metrics() -> list[Metric]:
    """Return the metrics of the wings that are here."""
    return [metric for part in _of_wings() for metric in part.METRICS]


def _of_wings() -> list[ToldPart]:
    parts: list[ToldPart] = [wing.load(module) for module in wing.with_part("told")]
    return parts
