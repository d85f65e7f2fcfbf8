"""`warmstart audit`: query audit logs by job, node, event, outcome, user and time, and follow them.

Other commands read logs, too: which ones, and of what time, they ask by the same options.
"""

from __future__ import annotations

import json
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from functools import reduce
from itertools import chain

import click

from warmstart.audit.line import Line, timestamp
from warmstart.audit.query import AuditLog, LineFilter
from warmstart.cli.output import fail, json_option, text, warn
from warmstart.errors import PolicyError
from warmstart.paths import Installation
from warmstart.policy.current import current_policy
from warmstart.policy.units import parse_duration

NOTHING = 1
TAIL = 10  # lines that --follow shows first
_Command = Callable[..., None]


def moment(_context: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """Parse a duration before now, or a date in UTC, into the form of a line's `ts`."""
    if value is None:
        return None
    try:
        return timestamp(time.time() - parse_duration(value))
    except ValueError:
        pass
    try:
        date = datetime.fromisoformat(value.removesuffix("Z"))
        return timestamp(date.replace(tzinfo=date.tzinfo or timezone.utc).timestamp())
    except (ValueError, OverflowError):
        raise click.BadParameter("use 30m, 2h, 7d, 2026-01-31 or 2026-01-31T09:30 (UTC)") from None


def log_options(since: str | None = None) -> Callable[[_Command], _Command]:
    """Return the options of which logs are read and of what time; `since` has the default."""
    options = (
        click.option(
            "--from",
            "sources",
            multiple=True,
            metavar="PATH",
            help="Read this log, the *.jsonl below this directory; may be repeated.",
        ),
        click.option("--until", metavar="AGO|DATE", callback=moment, help="Read until then."),
        click.option(
            "--since",
            metavar="AGO|DATE",
            callback=moment,
            default=since,
            show_default=bool(since),
            help="Read from then on: 2h, 7d, or a date.",
        ),
    )
    return lambda command: reduce(lambda inner, option: option(inner), options, command)


@click.command()
@click.option("--job", type=click.IntRange(min=1), help="Show only events of this job id.")
@click.option("--node", help="Show only events of this node.")
@click.option("--event", help="Show only this event, or those of a glob: image.imported, 'image.*'.")
@click.option("--outcome", help="Show only last lines with this outcome: refused, failed, crashed, drained.")
@click.option("--user", help="Show only events of this user's jobs, by name or uid.")
@log_options()
@click.option(
    "-f",
    "--follow",
    is_flag=True,
    help="Show the last ten events, then new ones; ends by ^C.",
)
@json_option
@click.pass_obj
def audit(
    installation: Installation,
    /,
    *,
    sources: tuple[str, ...],
    follow: bool,
    as_json: bool,
    **only: int | str | None,
) -> None:
    """Show the lines of the audit log that match all options.

    Reads the policy's audit log with its rotated files. With --json each line is as docs/reference/audit.md describes
    it.

    Exit status: 0 events were found; 1 no event matches; 2 wrong usage, or a log cannot be read.
    """
    where = LineFilter(**only)  # type: ignore[arg-type]  # click has checked the types
    log = opened_log(installation, sources)
    with suppress(KeyboardInterrupt), reading(log, sources):
        if not _show(log, where, follow=follow, as_json=as_json):
            warn("no event matches")
            raise click.exceptions.Exit(NOTHING)


def opened_log(installation: Installation, sources: Sequence[str]) -> AuditLog:
    """Return the given logs, or the policy's. Ends with an error if there is no policy."""
    if sources:
        return AuditLog(sources)
    try:
        path = current_policy(installation).policy.paths.audit
    except PolicyError as error:
        fail(error, "the policy sets the path of the audit log; give one yourself with --from PATH")
    return AuditLog([path])


@contextmanager
def reading(log: AuditLog, sources: Sequence[str]) -> Iterator[None]:
    """End the command with an error if the log cannot be read; say how many lines in it are none."""
    try:
        yield
    except FileNotFoundError as error:
        fail(error, "" if sources else "no hook has run yet, or hooks could not write it: `warmstart doctor`")
    except OSError as error:
        fail(error, "only root and the log's group can read the audit log")
    finally:
        if log.broken:
            warn(f"skipped {log.broken} unreadable lines")


def _show(log: AuditLog, where: LineFilter, *, follow: bool, as_json: bool) -> bool:
    """Print the lines and return whether there were any."""
    show: Callable[[Line], str] = json.dumps
    if not as_json:
        from warmstart.audit.rendering import console  # structlog is slow to import

        show = console(text, colors=sys.stdout.isatty())
    any_line = False
    for line in chain(deque(log.lines(where), TAIL), log.follow(where)) if follow else log.lines(where):
        click.echo(show(line))
        any_line = True
    return any_line
