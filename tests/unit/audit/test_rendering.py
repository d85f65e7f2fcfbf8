"""How events are written; `test_sink.py` has the log's form, `cli/test_audit.py` the console's."""

from __future__ import annotations

from warmstart.audit.rendering import console, write


class Taken:
    """What takes lines, and remembers their levels."""

    def __init__(self) -> None:
        self.levels: list[str] = []

    def info(self, _text: str) -> None:
        """Take what went well."""
        self.levels.append("info")

    def warning(self, _text: str) -> None:
        """Take what failed."""
        self.levels.append("warning")

    def error(self, _text: str) -> None:
        """Take what costs a node."""
        self.levels.append("error")


def test_a_line_is_written_at_its_level() -> None:
    """As syslog and the console have it."""
    taken = Taken()
    for event in ("hook.started", "step.failed", "node.drained"):
        write({"event": event}, taken)
    assert taken.levels == ["info", "warning", "error"]


def test_a_line_cannot_forge_another_one_on_the_console() -> None:
    """Neither by a value nor by a key, of a log that somebody else has written."""
    line: dict[str, object] = {"ts": "t\n1", "event": "a\nb", "x\ny": "u\nv", "traceback": "w\n"}
    assert "\n" not in console(str, colors=False)(line)
