"""How structlog writes events: as JSON into the log, and for people on a console. The only user of structlog."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import structlog
from structlog.typing import EventDict

from warmstart.audit.line import Line, shaped, visible
from warmstart.audit.syslog import level

EVENT_WIDTH = 20
LEFT_OUT = frozenset({"schema", "ts", "event", "run_id", "cluster", "error"})  # of the console's fields


class Output(Protocol):
    """What takes lines, each at its level."""

    def info(self, text: str) -> None:
        """Take what went well."""

    def warning(self, text: str) -> None:
        """Take what failed."""

    def error(self, text: str) -> None:
        """Take what costs a node."""


def _shape(_logger: object, _method: str, event_dict: EventDict) -> EventDict:
    return shaped({**event_dict})


PROCESSORS: list[structlog.typing.Processor] = [_shape, structlog.processors.JSONRenderer(separators=(",", ":"))]


def write(line: Line, output: Output) -> None:
    """Write an event as a line of the log, at its level."""
    getattr(structlog.BoundLogger(output, PROCESSORS, line), level(line))()


def console(show: Callable[[object], str], *, colors: bool) -> Callable[[Line], str]:
    """Return what makes one line for people of an event: time, level, name and fields, each as `show` has it.

    Of an error it has reason and hint.
    """
    renderer = structlog.dev.ConsoleRenderer(EVENT_WIDTH, colors=colors, sort_keys=False, timestamp_key="ts")

    def render(line: Line) -> str:
        error = line.get("error")
        told = {key: error[key] for key in ("reason", "hint") if error.get(key)} if isinstance(error, dict) else {}
        fields = {key: value for key, value in line.items() if key not in LEFT_OUT} | told
        shown = {visible(key): visible(show(value)) for key, value in fields.items()}
        head = {key: visible(show(line.get(key))) for key in ("ts", "event")}
        return renderer(None, "", {**head, "level": level(line), **shown})

    return render
