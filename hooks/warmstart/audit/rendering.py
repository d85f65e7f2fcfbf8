"""How structlog renders lines: as JSON in the log of programs that are no hooks, and for people on a console.

The only user of structlog. Hooks write the same JSON without it (`audit.log`): it takes longer to import than a warm
prolog runs.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog

from warmstart.audit import values
from warmstart.audit.line import ORDER, Line, visible
from warmstart.audit.log import Log
from warmstart.audit.syslog import level

EVENT_WIDTH = 20
LEFT_OUT = frozenset({"schema", "ts", "event", "run_id", "cluster", "error", "failures"})  # of the console's fields
_JSON = structlog.processors.JSONRenderer(separators=(",", ":"))


class ProgramLog(Log):
    """The log of a program that is no hook."""

    def _rendered(self, line: Line) -> str:
        return str(_JSON(None, level(line), line))


def console(show: Callable[[object], str], *, colors: bool) -> Callable[[Line], str]:
    """Return what makes one line for people of an event: time, level, name and fields, each as `show` has it.

    Where it has failures, their reasons and hints stand in place of its result.
    """
    renderer = structlog.dev.ConsoleRenderer(EVENT_WIDTH, colors=colors, sort_keys=False, timestamp_key="ts")

    def render(line: Line) -> str:
        problems = [values.mapping(line, "error"), *values.mappings(line, "failures")]
        reasons = [" - ".join(filter(None, (values.text(one, key) for key in ("reason", "hint")))) for one in problems]
        why = "; ".join(filter(None, reasons))
        fields = {key: line[key] for key in line if key not in LEFT_OUT and (key in ORDER or not why)}
        shown = {visible(key): visible(show(value)) for key, value in fields.items()}
        head = {key: visible(show(line.get(key))) for key in ("ts", "event")}
        return renderer(None, "", {**head, "level": level(line), **shown, **({"why": visible(why)} if why else {})})

    return render
