"""`warmstart page`: the report as one HTML page."""

from __future__ import annotations

import os
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator

import click

from warmstart.audit import values
from warmstart.audit.line import Line, timestamp
from warmstart.audit.query import LineFilter
from warmstart.cli.audit import log_options, opened_log, reading
from warmstart.cli.output import fail, say
from warmstart.cli.report import summarized
from warmstart.job import Job
from warmstart.paths import Installation
from warmstart.policy.keys import Policy
from warmstart.policy.match import Grant
from warmstart.policy.units import format_size
from warmstart.report.summary import Adding, Summary
from warmstart.request import Request
from warmstart.wings.page.page import page as drawn


@click.command()
@click.argument("file", type=click.Path(dir_okay=False))
@log_options("7d")
@click.pass_obj
def page(installation: Installation, *, file: str, since: str, until: str | None, sources: tuple[str, ...]) -> None:
    """Write what `warmstart report` shows to FILE, as one HTML page with charts.

    Exit status: 0 it is written; 1 no hook ran in that time; 2 wrong usage, or a log cannot be read, or FILE written.
    """
    whole = summarized(installation, since, until, sources)
    log = opened_log(installation, sources)
    with reading(log, sources):
        days = by_day(log.lines(LineFilter(since=since, until=until)))
    text = drawn(whole, days, timestamp(time.time()))
    try:
        with open(file, "w", encoding="utf-8") as output:
            output.write(text)
    except OSError as error:
        fail(error)
    say(f"wrote {file}, {format_size(os.path.getsize(file))}")


def by_day(lines: Iterable[Line]) -> dict[str, Summary]:
    """Return the summaries of days, by their dates."""
    days = defaultdict[str, Adding](Adding)
    for line in lines:
        days[values.text(line, "ts")[: len("2026-01-31")]].add(line)
    return {day: adding.result(time.time()) for day, adding in sorted(days.items())}


def remarks(policy: Policy, job: Job, grant: Grant, requested: Request) -> Iterator[str]:  # noqa: ARG001 - the shape of all wings'
    """Say nothing of a job."""
    yield from ()
