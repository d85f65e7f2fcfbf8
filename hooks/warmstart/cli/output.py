"""Output of the command line: tables and paragraphs for people, `--json` for programs, errors on stderr.

Where stdout is no terminal, a row is one line, and nothing is cut. On a terminal, the last column wraps, so that tables
fit. All text passes `visible`, because
names, comments and messages come from users and registries, and terminals execute control characters (docs/threats.md,
row 20).
"""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import NamedTuple, NoReturn, TypeVar

import click

from warmstart.audit.line import visible
from warmstart.errors import WarmstartError
from warmstart.policy.units import format_duration, format_size

UNUSABLE = 2  # also click's status for a wrong command line
GAP = "  "
NARROWEST = 24  # columns for a last cell beside the others; with less room it goes below them
INDENT = "    "
_NUMBER = re.compile(r"-|[0-9][0-9.,]*[A-Za-z%]*")

_T = TypeVar("_T")

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


def text(value: object) -> str:
    """Format any value for a cell: nothing as `-`, lists as `a,b`, mappings as `a=1,b=2`."""
    if value is None or value in ("", [], (), {}):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1f}"
    if isinstance(value, Mapping):
        return ",".join(f"{key}={text(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return ",".join(map(text, value))
    return str(value)


def size(value: object) -> str:
    """Format a number of bytes in the policy's units: `512MiB`, `1.5GiB`."""
    return format_size(value) if isinstance(value, (int, float)) else text(value)


def duration(value: object) -> str:
    """Format seconds in the policy's units: `30s`, `1.5h`; below a second as `31ms`."""
    return format_duration(value) if isinstance(value, (int, float)) else text(value)


def rfc3339(value: object) -> str:
    """Format epoch seconds in UTC: `2026-01-31T09:30:00Z`."""
    if not isinstance(value, (int, float)):
        return text(value)
    return datetime.fromtimestamp(value, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


class Column(NamedTuple):
    """A column of a list."""

    name: str  # the field of a row, as --json has it
    show: Callable[[object], str] = text


def show_rows(columns: Sequence[Column], rows: Sequence[Mapping[str, object]], *, as_json: bool) -> None:
    """Print a list's rows: as a table of these columns, or as JSON with all their fields."""
    if as_json:
        show_json(rows)
    elif rows:
        cells = [[column.show(row.get(column.name)) for column in columns] for row in rows]
        _print_table([column.name.upper() for column in columns], cells)
    else:
        warn("nothing to list")


def say(words: str, **style: bool | str) -> None:
    """Print a paragraph on stdout; `style` is click's. On a terminal it is wrapped, but not within words."""
    width = _width()
    for line in visible(words, keep="\n").split("\n"):
        for piece in _wrapped(line, width) if width else [line]:
            click.echo(click.style(piece, **style) if style else piece)  # type: ignore[arg-type]


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table on stdout."""
    _print_table([column.upper() for column in columns], [[text(cell) for cell in row] for row in rows])


def show_fields(pairs: Iterable[tuple[str, object]]) -> None:
    """Print names and values, one pair per line."""
    _print_table(None, [[f"{name}:", text(value)] for name, value in pairs], align=False)


def _print_table(
    heads: Sequence[str] | None,
    rows: Sequence[Sequence[str]],
    *,
    align: bool = True,
) -> None:
    shown = [[visible(cell) for cell in row] for row in rows]
    above = [list(heads)] if heads else []
    columns = list(zip(*above, *shown, strict=True))
    widths = [max(map(len, column)) for column in columns[:-1]]
    right = [align and all(map(_NUMBER.fullmatch, column[len(above) :])) for column in columns[:-1]]
    for number, (*row, last) in enumerate([*above, *shown]):
        start = "".join(
            (cell.rjust(width) if is_right else cell.ljust(width)) + GAP
            for cell, width, is_right in zip(row, widths, right, strict=True)
        )
        for line in _folded(start, last, _width()):
            click.echo(click.style(line, bold=True) if number < len(above) else line)


def _folded(start: str, last: str, width: int | None) -> list[str]:
    """Return a row's lines: one if it fits or `width` is None, else the last cell is wrapped, if need be below."""
    line = (start + last).rstrip()
    if width is None or len(line) <= width:
        return [line]
    if width - len(start) >= max(NARROWEST, *map(len, last.split())):
        first, *rest = _wrapped(last, width - len(start))
        return [start + first, *(" " * len(start) + piece for piece in rest)]
    return [start.rstrip(), *(INDENT + piece for piece in _wrapped(last, width - len(INDENT)))]


class _Wrapper(textwrap.TextWrapper):
    """Breaks lines at spaces, and after the commas of a list."""

    wordsep_simple_re = re.compile(r"(\s+)|(?<=,)")


def _wrapped(line: str, width: int) -> list[str]:
    indent = " " * (len(line) - len(line.lstrip()))
    wrapper = _Wrapper(max(width, 1), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return wrapper.wrap(line) or [""]


def progress(things: Sequence[_T], what: str, *, quiet: bool) -> Iterable[_T]:
    """Iterate over `things`, with a progress bar on stderr if that is a terminal."""
    if quiet or not _is_watched():
        return things
    from rich.console import Console
    from rich.progress import track

    return track(things, f"{what}…", console=Console(stderr=True), transient=True)


@contextmanager
def working(words: str) -> Iterator[None]:
    """Show a spinner on stderr during a `with` block, if stderr is a terminal."""
    if not _is_watched():
        yield
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text(visible(words))):
        yield


@contextmanager
def bar(words: str, *, quiet: bool) -> Iterator[Callable[[str, int], None]]:
    """Show a progress bar on stderr during a `with` block, if stderr is a terminal; yield what moves it.

    That takes a phase, and the bytes that are done in it.
    """
    if quiet or not _is_watched():
        yield lambda _phase, _done: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(
        TextColumn("{task.description}", markup=False), *columns, console=Console(stderr=True), transient=True
    ) as shown:
        task, current = shown.add_task(visible(words), total=None), ""

        def move(phase: str, done: int) -> None:
            nonlocal task, current
            if phase != current:  # the speed is the phase's own
                shown.remove_task(task)
                task, current = shown.add_task(visible(f"{words}: {phase}"), total=None), phase
            shown.update(task, completed=done)

        yield move


def show_json(value: object) -> None:
    """Print one JSON value on one line, in ASCII."""
    click.echo(json.dumps(value))


def as_objects(value: object) -> object:
    """Return named tuples as objects, at any depth."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: as_objects(item) for name, item in value._asdict().items()}
    if isinstance(value, dict):
        return {name: as_objects(item) for name, item in value.items()}
    return [as_objects(item) for item in value] if isinstance(value, tuple) else value


def answer(words: str, value: object, *, as_json: bool) -> None:
    """Print what a command did: words for people, a value for programs."""
    if as_json:
        show_json(value)
    else:
        say(words)


def warn(words: str) -> None:
    """Print a message on stderr."""
    click.echo(f"warmstart: {visible(words, keep=chr(10))}", err=True)


def fail(error: WarmstartError | OSError, hint: str = "") -> NoReturn:
    """Print an error and its hint on stderr. Exits with status 2."""
    problem = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
    warn(problem)
    if hint:
        warn(hint)
    raise click.exceptions.Exit(UNUSABLE)


def _is_watched() -> bool:
    return sys.stderr.isatty()


def _width() -> int | None:
    """Return the terminal's width, None if stdout is none."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None
