"""`warmstart audit`: query the audit log by job, node, event, user and time."""

from __future__ import annotations

import os
import time
from datetime import datetime, timezone

import click

from warmstart.audit.line import ORDER, Line, timestamp
from warmstart.audit.query import AuditLog, LineFilter
from warmstart.entry.cli.output import fail, json_option, show_json, show_table, warn
from warmstart.errors import PolicyError
from warmstart.paths import Installation
from warmstart.policy.current import current_policy
from warmstart.policy.units import parse_duration

NOTHING = 1
COLUMNS = ("time (UTC)", "node", "job", "hook", "step", "event", "outcome", "ms", "detail")
LONGEST_DETAIL = 160


def _since(_context: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """Parse --since, a duration before now or a date in UTC, into the form of a line's `ts`."""
    if value is None:
        return None
    try:
        return timestamp(time.time() - parse_duration(value))
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(value.removesuffix("Z"))
        return timestamp(moment.replace(tzinfo=moment.tzinfo or timezone.utc).timestamp())
    except (ValueError, OverflowError):
        raise click.BadParameter("use 30m, 2h, 7d, 2026-01-31 or 2026-01-31T09:30 (UTC)") from None


@click.command()
@click.option("--job", type=click.IntRange(min=1), help="Show only events of this job id.")
@click.option("--node", help="Show only events of this node.")
@click.option("--event", help="Show only this event, noun or glob: image.imported, image, '*.failed'.")
@click.option("--user", help="Show only events of this user's jobs, by name or uid.")
@click.option("--since", metavar="AGO|DATE", callback=_since, help="Show only newer events: 2h, 7d, or a date in UTC.")
@click.option("--file", type=click.Path(dir_okay=False), help="Read this log instead of the policy's.")
@json_option
@click.pass_obj
def audit(
    installation: Installation,
    *,
    job: int | None,
    node: str | None,
    event: str | None,
    user: str | None,
    since: str | None,
    file: str | None,
    as_json: bool,
) -> None:
    """Show the audit events that match all options.

    Reads the policy's audit log with its rotated files and, as root, the events of this host's nodes that are not in
    the log yet. With --json each event is one line, as docs/audit.md describes it.

    Exit status: 0 events were found; 1 no event matches; 2 wrong usage, or the log cannot be read.
    """
    where = LineFilter(job, node, event, user, since)
    log = AuditLog([file]) if file else AuditLog([_path(installation)], _journal_dirs(installation))
    try:
        found = _print_json(log, where) if as_json else _print_table(log, where)
    except FileNotFoundError as error:
        fail(error, "" if file else "no hook has moved its events into this log yet")
    except OSError as error:
        fail(error, "only root and the log's group can read the audit log")
    if log.broken:
        warn(f"skipped {log.broken} unreadable lines")
    if not found:
        raise click.exceptions.Exit(NOTHING)


def _path(installation: Installation) -> str:
    try:
        return current_policy(installation).policy.paths.audit
    except PolicyError as error:
        fail(error, "the policy sets the path of the audit log; give one yourself with --file PATH")


def _journal_dirs(installation: Installation) -> list[str]:
    try:
        nodes = sorted(os.listdir(installation.var))
    except OSError:
        return []
    return [installation.node(node).journal for node in nodes]


def _print_json(log: AuditLog, where: LineFilter) -> int:
    count = 0
    for line in log.lines(where):
        show_json(line)
        count += 1
    return count


def _print_table(log: AuditLog, where: LineFilter) -> int:
    lines = sorted(log.lines(where), key=lambda line: str(line.get("ts")))
    if lines:
        show_table(COLUMNS, (_row(line) for line in lines))
    else:
        warn("no event matches")
    return len(lines)


def _row(line: Line) -> tuple[object, ...]:
    when = str(line.get("ts")).replace("T", " ").removesuffix("Z")
    columns = ("node", "job_id", "hook", "step", "event", "outcome", "duration_ms")
    return (when, *(line.get(key) for key in columns), _detail(line))


def _detail(line: Line) -> str:
    """Return the line's reason, or, if it has none, the fields that have no column of their own."""
    found = line.get("error")
    error: Line = found if isinstance(found, dict) else {}
    reasons = [str(error[key]) for key in ("reason", "hint") if error.get(key)]
    rest = [f"{key}={value}" for key, value in line.items() if key not in ORDER and key != "error"]
    text = " - ".join(reasons) or " ".join(rest)
    return text if len(text) <= LONGEST_DETAIL else text[: LONGEST_DETAIL - 1] + "…"
