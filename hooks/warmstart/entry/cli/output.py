"""Output of the command line: tables for people, `--json` for programs, errors on stderr.

All text passes `visible`, because names, comments and messages come from users and registries, and terminals execute
control characters (docs/threats.md, row 20). rich is imported by what draws with it: JSON does without.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn, TypeVar

import click

from warmstart.audit.line import visible
from warmstart.errors import WarmstartError

if TYPE_CHECKING:
    from rich.console import Console

UNUSABLE = 2  # also click's status for a wrong command line
WIDE = 200  # columns, if the output is not a terminal

_T = TypeVar("_T")

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of text.")


def say(text: str, style: str = "") -> None:
    """Print a paragraph on stdout."""
    from rich.text import Text

    _console().print(Text(visible(text, keep="\n"), style))


def show_table(columns: Sequence[str], rows: Iterable[Sequence[object]], title: str = "") -> None:
    """Print a table on stdout. None is an empty cell."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    shown_title = Text(visible(title), "bold") if title else None
    table = Table(box=SIMPLE_HEAD, title=shown_title, title_justify="left", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text("" if cell is None else visible(str(cell))) for cell in row))
    _console().print(table)


def progress(things: Sequence[_T], what: str, *, quiet: bool) -> Iterable[_T]:
    """Iterate over `things`, with a progress bar on stderr if that is a terminal."""
    if quiet or not _is_watched():
        return things
    from rich.console import Console
    from rich.progress import track

    return track(things, f"{what}…", console=Console(stderr=True), transient=True)


@contextmanager
def working(text: str) -> Iterator[None]:
    """Show a spinner on stderr during a `with` block, if stderr is a terminal."""
    if not _is_watched():
        yield
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text(visible(text))):
        yield


def show_json(value: object) -> None:
    """Print one JSON value on one line, in ASCII."""
    click.echo(json.dumps(value))


def warn(text: str) -> None:
    """Print a message on stderr."""
    click.echo(f"warmstart: {visible(text, keep=chr(10))}", err=True)


def fail(error: WarmstartError | OSError, hint: str = "") -> NoReturn:
    """Print an error and its hint on stderr. Exits with status 2."""
    problem = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)
    warn(problem)
    if hint:
        warn(hint)
    raise click.exceptions.Exit(UNUSABLE)


def _is_watched() -> bool:
    return sys.stderr.isatty()


def _console() -> Console:
    from rich.console import Console

    width = None if sys.stdout.isatty() else WIDE
    return Console(file=sys.stdout, width=width, highlight=False, markup=False, emoji=False)
