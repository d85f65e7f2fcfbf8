"""`warmstart report`: what the hooks did in a time, as text or JSON."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import click

from warmstart.audit.query import LineFilter, epoch
from warmstart.cli.audit import log_options, opened_log, reading
from warmstart.cli.output import as_objects, json_option, say, show_json, show_table, warn
from warmstart.paths import Installation
from warmstart.policy.units import format_duration, format_size
from warmstart.profiles.contract import USES
from warmstart.report.summary import Summary, counted, summarize

NOTHING = 1


@click.command()
@log_options("7d")
@json_option
@click.pass_obj
def report(
    installation: Installation,
    /,
    *,
    since: str,
    until: str | None,
    sources: tuple[str, ...],
    as_json: bool,
) -> None:
    """Show what warmstart did: jobs, hit rates, imports, time saved, what was cold and why, failures, slow hooks.

    Reads audit logs. Each log is of one host: for the whole cluster collect them in a directory and give it with
    --from.

    Exit status: 0 there were runs of hooks in that time; 1 there were none; 2 wrong usage, or a log cannot be read.
    """
    summary = summarized(installation, since, until, sources)
    if as_json:
        show_json(as_objects(summary))
    else:
        _show(summary)


def summarized(installation: Installation, since: str, until: str | None, sources: Sequence[str]) -> Summary:
    """Return the summary of these logs, or the policy's. Ends the command if no hook ran in that time."""
    log = opened_log(installation, sources)
    with reading(log, sources):
        lines = log.lines(LineFilter(since=since, until=until))
        summary = summarize(lines, epoch(until) if until else time.time())
    if not summary.runs:
        warn("no hook ran in that time")
        raise click.exceptions.Exit(NOTHING)
    return summary


def _show(summary: Summary) -> None:
    whose = f"{', '.join(summary.clusters)}: " if summary.clusters else ""
    say(f"{whose}{summary.first} to {summary.last}, {counted(summary.nodes, 'node')}")
    uses = summary.caches
    _table(
        ("what", "number", "of which"),
        [
            ("job starts", summary.jobs, counted(summary.users, "user")),
            ("caches that hit", uses.percent, f"{uses.hit} of {uses.hit + uses.built} of which it is known"),
            ("imports", summary.imports, format_size(summary.imported_bytes)),
            ("imports avoided", summary.avoided, "uses of images on every node, less the imports"),
            ("time saved on imports", "-" if summary.saved is None else format_duration(summary.saved), ""),
            ("entries published", summary.entries, format_size(summary.published_bytes)),
        ],
    )
    for what, all_uses in (("profile", summary.profiles), ("user", summary.by_user)):
        _table((what, "hits", *USES), [(uses.name, uses.percent, *uses[1:]) for uses in all_uses])
    _counts("whose caches began cold, and why", summary.cold)
    _counts("failures (refused, drained, step or event: code)", summary.failures)
    _table(
        ("what took", "p50", "p95", "p99", "times", "failed"),
        [(one.what, *map(format_duration, one[3:]), one.number, one.failed) for one in summary.times],
    )


def _counts(what: str, numbers: Mapping[str, int]) -> None:
    _table(("times", what), [(number, name) for name, number in numbers.items()])


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    if rows:
        say("")
        show_table(columns, rows)
