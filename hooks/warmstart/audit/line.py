r"""The form of one line of the audit log: order of keys, time, escapes, and a length that every reader takes.

Parts of a line come from users (names of images, messages of tools that read their files), and administrators read it
in terminals and with `jq -r` (docs/threats.md, row 20). So control and other invisible characters are written as
visible escapes, and what is long is cut. Hot path.
"""

from __future__ import annotations

import time

from warmstart.lean import TYPE_CHECKING, Iterable, dumps, loads

if TYPE_CHECKING:
    from typing import NewType

    Event = NewType("Event", str)
else:
    Event = str

Line = dict[str, object]

# What a program begins with; its last line; and the last line for another job than its own.
HOOK_STARTED, HOOK_FINISHED = Event("hook.started"), Event("hook.finished")
HARVEST_FINISHED = Event("harvest.finished")

SCHEMA = 1
ORDER = (
    "schema", "ts", "event", "hook", "run_id", "cluster", "node", "job_id", "uid", "user", "partition", "account",
    "step", "outcome", "status", "duration_ms",
)  # fmt: skip
LONGEST = 8000  # bytes with the newline: rsyslog cuts at 8 KiB, with the header that it puts before a line
# Of texts the characters, of lists the items, of objects the keys. A line has the first with which it is short enough.
BOUNDS = ((4096, 50, 64), (1024, 20, 40), (256, 8, 24), (64, 3, 12))
LONGEST_KEY = 64
DEEPEST = 8
MOST = 1 << 63  # JSON has no NaN or infinity, and most readers use 64-bit integers
MULTILINE = frozenset({"traceback"})  # unreadable as one line; in other values a newline could forge a line
CUT = "[cut]"
_SEPARATORS = (",", ":")


def decoded(raw: bytes) -> Line | None:
    """Parse `raw` as a JSON object. Return None if it is anything else."""
    try:
        value = loads(raw.decode())
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def encoded(line: Line) -> str:
    """Return the JSON of a line, without spaces."""
    return dumps(line, separators=_SEPARATORS)


def timestamp(seconds: float) -> str:
    """Format epoch seconds as ISO 8601 in UTC with milliseconds: `2026-01-31T09:30:00.250Z`, which sorts as text.

    Raises `ValueError` for a time outside the years 1 to 9999.
    """
    try:
        whole, thousandths = divmod(round(seconds * 1_000_000) // 1000, 1000)
        year, month, day, hour, minute, second, *_ = time.gmtime(whole)
    except (OverflowError, OSError) as error:
        raise ValueError(f"not a time: {seconds!r}") from error
    if not 1 <= year <= 9999:
        raise ValueError(f"not a time: {seconds!r}")
    return f"{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}.{thousandths:03}Z"


def shaped(fields: Line) -> Line:
    """Return a line's fields as the log has them: ordered, escaped, and cut so that their JSON fits into `LONGEST`.

    Lists keep their first items, objects their first keys, texts their ends. Where that is not enough, whole fields
    give way to `[cut]`, the longest first, and those of `ORDER` last.
    """
    fields = {**fields, "schema": SCHEMA}
    whole = {key: fields[key] for key in ORDER if key in fields} | fields
    line: Line = {}
    for bound in BOUNDS:
        line = _line(whole, bound)
        if _fits(line):
            return line
    for key in sorted(line, key=lambda key: (key in ORDER, -len(dumps(line[key])))):
        line[key] = CUT
        if _fits(line):
            break
    return line


def escaped(fields: Line) -> Line:
    """Return the fields of any line in the log's form, which needs no cuts if we have written it."""
    return _line(fields, (LONGEST, LONGEST, LONGEST))


def visible(text: str, keep: str = "") -> str:
    r"""Return `text` with non-printing characters escaped: `\x1b`, `\u202e`, and so on."""
    if text.isprintable():
        return text
    return "".join(char if char in keep or char.isprintable() else ascii(char)[1:-1] for char in text)


def _fits(line: Line) -> bool:
    return len(encoded(line)) < LONGEST


def _line(fields: Line, bound: tuple[int, int, int]) -> Line:
    return {
        _key(key): _value(value, bound, DEEPEST, "\n\t" if key in MULTILINE else "") for key, value in fields.items()
    }


def _value(value: object, bound: tuple[int, int, int], depth: int, keep: str = "") -> object:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return value if -MOST < value < MOST else _text(hex(value) if isinstance(value, int) else str(value), bound[0])
    if isinstance(value, dict):
        return _object(value, bound, depth)
    if isinstance(value, list | tuple):
        return _list(value, bound, depth)
    return _text(str(value), bound[0], keep)


def _object(value: dict[object, object], bound: tuple[int, int, int], depth: int) -> object:
    if not depth:
        return CUT
    most = bound[2]
    short = {_key(key): _value(item, bound, depth - 1) for key, item in list(value.items())[:most]}
    if len(value) > most:
        short[CUT] = _more(len(value) - most, short.values())
    return short


def _list(value: list[object] | tuple[object, ...], bound: tuple[int, int, int], depth: int) -> object:
    if not depth:
        return CUT
    most = bound[1]
    short = [_value(item, bound, depth - 1) for item in value[:most]]
    if len(value) > most:
        short.append(_more(len(value) - most, short))
    return short


def _more(number: int, shown: Iterable[object]) -> object:
    """Say how many are left out, in the form of those that are there: jq goes through them all."""
    return {CUT: number} if all(isinstance(item, dict) for item in shown) else f"[cut: {number} more]"


def _key(key: object) -> str:
    """Return a key in ASCII: then its length is that of its JSON."""
    text = str(key)
    return (text if text.isascii() and text.isprintable() else ascii(text)[1:-1])[:LONGEST_KEY]


def _text(text: str, room: int, keep: str = "") -> str:
    """Cut the middle: the last line of a traceback matters most, and the start of a message."""
    if len(text) <= room and len(whole := visible(text, keep)) <= room:
        return whole
    half = min(room, len(text)) // 2
    head, tail = visible(text[:half], keep), visible(text[len(text) - half :], keep)
    return f"{head[: room // 2]} [cut, of {len(text)} characters] {tail[-(room // 2) :]}"
