"""Which audit logs a command reads, and of what time: options that several commands have."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timezone

import click

from warmstart.audit.line import timestamp
from warmstart.audit.query import AuditLog
from warmstart.cli.output import fail
from warmstart.errors import PolicyError
from warmstart.paths import Installation
from warmstart.policy.current import current_policy
from warmstart.policy.units import parse_duration

NOT_READABLE = "only root and the log's group can read the audit log"

from_option = click.option(
    "--from",
    "sources",
    multiple=True,
    metavar="PATH",
    help="Read this log, the *.jsonl below this directory, or - for standard input; may be repeated.",
)


def moment(_context: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    """Parse a duration before now or a date in UTC into the form of a line's `ts`."""
    if value is None:
        return None
    try:
        return timestamp(time.time() - parse_duration(value))
    except ValueError:
        pass
    try:
        found = datetime.fromisoformat(value.removesuffix("Z"))
        return timestamp(found.replace(tzinfo=found.tzinfo or timezone.utc).timestamp())
    except (ValueError, OverflowError):
        raise click.BadParameter("use 30m, 2h, 7d, 2026-01-31 or 2026-01-31T09:30 (UTC)") from None


def opened_log(installation: Installation, sources: Sequence[str]) -> AuditLog:
    """Return the given logs, or the policy's with what is not in it yet. Ends with an error if there is no policy."""
    if sources:
        return AuditLog(sources)
    try:
        path = current_policy(installation).policy.paths.audit
    except PolicyError as error:
        fail(error, "the policy sets the path of the audit log; give one yourself with --from PATH")
    return AuditLog([path], journal_dirs(installation))


def journal_dirs(installation: Installation) -> list[str]:
    """Return the directories of this host's journals."""
    try:
        nodes = sorted(os.listdir(installation.var))
    except OSError:
        return []
    return [installation.node(node).journal for node in nodes]


@contextmanager
def reading(sources: Sequence[str]) -> Iterator[None]:
    """End the command with an error if a log cannot be read."""
    try:
        yield
    except FileNotFoundError as error:
        fail(error, "" if sources else "no hook has moved its events into this log yet")
    except OSError as error:
        fail(error, NOT_READABLE)
