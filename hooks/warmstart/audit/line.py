"""The format of one audit line: key order, timestamps, escaped control characters, bounded values.

Parts of a line come from users (image names, messages of tools that read their files), and administrators read it in
terminals and with `jq -r` (docs/threats.md, row 20). So control and other invisible characters are written as visible
escapes, and long values are cut. Does not need structlog: `audit.query` and the command line use it too.
"""

from __future__ import annotations

import json
from datetime import datetime, timezone

Line = dict[str, object]

SCHEMA = 1
ORDER = (
    "schema", "ts", "event", "hook", "run_id", "cluster", "node", "job_id", "uid", "user", "step", "outcome",
    "duration_ms",
)  # fmt: skip
LONGEST_VALUE = 4096  # characters of JSON, roughly
LONGEST_KEY = 64
MOST_KEYS = 64
DEEPEST = 8
MOST = 1 << 63
MULTILINE = frozenset({"traceback"})  # unreadable as one line; in other values a newline could forge a line


def decoded(raw: bytes) -> Line | None:
    """Parse `raw` as a JSON object. Return None if it is anything else."""
    try:
        value = json.loads(raw.decode())
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def timestamp(seconds: float) -> str:
    """Format epoch seconds as ISO 8601 in UTC with milliseconds: `2026-01-31T09:30:00.250Z`, which sorts as text.

    Raises `ValueError` for a time outside the years 1 to 9999.
    """
    try:
        moment = datetime.fromtimestamp(seconds, timezone.utc)
    except (OverflowError, OSError) as error:
        raise ValueError(f"not a time: {seconds!r}") from error
    return moment.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def shaped(fields: Line) -> Line:
    """Return an event's fields as the log has them: ordered, bounded and escaped."""
    return escaped(bounded(ordered({**fields, "schema": SCHEMA})))


def ordered(fields: Line) -> Line:
    """Return the same fields, those of `ORDER` first and the rest in their given order."""
    known = {key: fields[key] for key in ORDER if key in fields}
    return {**known, **{key: value for key, value in fields.items() if key not in known}}


def bounded(fields: Line) -> Line:
    """Return the fields with bounded values, keys and number of keys. Every cut says so."""
    bounded_fields: Line = {}
    for key, value in list(fields.items())[:MOST_KEYS]:
        bounded_fields[_cut(key, LONGEST_KEY)] = _bounded(value, LONGEST_VALUE, DEEPEST)
    if len(fields) > MOST_KEYS:
        bounded_fields["[cut]"] = f"{len(fields) - MOST_KEYS} more"
    return bounded_fields


def escaped(fields: Line) -> Line:
    """Return the fields with invisible characters in keys and strings escaped."""
    return {visible(key): _escaped(value, "\n\t" if key in MULTILINE else "") for key, value in fields.items()}


def visible(text: str, keep: str = "") -> str:
    r"""Return `text` with non-printing characters escaped: `\x1b`, `\u202e`, and so on."""
    if text.isprintable():
        return text
    return "".join(char if char in keep or char.isprintable() else _written_out(char) for char in text)


def _written_out(char: str) -> str:
    return char.encode("unicode_escape").decode()


def _escaped(value: object, keep: str) -> object:
    if isinstance(value, str):
        return visible(value, keep)
    if isinstance(value, dict):
        return {visible(key): _escaped(item, keep) for key, item in value.items()}
    if isinstance(value, list):
        return [_escaped(item, keep) for item in value]
    return value


def _bounded(value: object, room: int, depth: int) -> object:
    if isinstance(value, str):
        return _cut(value, room)
    if isinstance(value, (dict, list)) and not depth:
        return "[cut: nested too deep]"
    if isinstance(value, dict):
        return _bounded_dict(value, room, depth)
    if isinstance(value, list):
        return _bounded_list(value, room, depth)
    if isinstance(value, (int, float)) and not -MOST < value < MOST:
        return _cut(str(value), room)  # JSON has no NaN or infinity, and most readers use 64-bit integers
    return value


def _bounded_dict(value: Line, room: int, depth: int) -> Line:
    bounded_items: Line = {}
    for number, (key, item) in enumerate(value.items()):
        if room <= 0:
            bounded_items["[cut]"] = f"{len(value) - number} more"
            break
        short = _bounded(item, room, depth - 1)
        bounded_items[_cut(key, LONGEST_KEY)] = short
        room -= len(key[:LONGEST_KEY]) + len(json.dumps(short)) + 4
    return bounded_items


def _bounded_list(value: list[object], room: int, depth: int) -> list[object]:
    bounded_items: list[object] = []
    for number, item in enumerate(value):
        if room <= 0:
            bounded_items.append(f"[cut: {len(value) - number} more]")
            break
        bounded_items.append(short := _bounded(item, room, depth - 1))
        room -= len(json.dumps(short)) + 2
    return bounded_items


def _cut(text: str, room: int) -> str:
    if len(text) <= room:
        return text
    # Cut the middle: the last line of a traceback matters most, and the start of a message.
    half = room // 2
    return f"{text[:half]} [cut: {len(text) - 2 * half} characters] {text[-half:] if half else ''}"
