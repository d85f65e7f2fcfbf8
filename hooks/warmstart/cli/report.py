"""`warmstart report`: what the hooks did in a time, as text or JSON, or in a form that a wing brings."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence

import click

from warmstart.audit.line import timestamp
from warmstart.audit.query import LineFilter
from warmstart.cli.audit import epoch, from_option, opened_log, reading, since_option, until_option
from warmstart.cli.output import as_objects, fail, json_option, say, show_json, show_table, warn
from warmstart.paths import Installation
from warmstart.policy.units import SECONDS, format_duration, format_size
from warmstart.profiles.contract import USES
from warmstart.report.counting import Times, counted
from warmstart.report.summary import Counted, Saved, Summary, Uses, in_units, summarize
from warmstart.report.wings import forms

NOTHING = 1
DEFAULT_SINCE = "7d"
FIGURES = ("what", "number", "of which")
HOURLY = 2 * SECONDS["d"]  # of a shorter time, periods are hours

_Command = Callable[..., None]


def _with_forms(command: _Command) -> _Command:
    """Add an option for each form that a wing brings."""
    for name, form in forms().items():
        path = click.Path(dir_okay=False)
        command = click.option(f"--{name}", name, type=path, metavar="FILE", help=form.help)(command)
    return command


@click.command()
@since_option(DEFAULT_SINCE)
@until_option
@from_option
@_with_forms
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
    **files: str | None,
) -> None:
    """Show what warmstart did: jobs, hit rates, imports, time saved, what was cold and why, failures, slow hooks.

    Reads audit logs. Each log is of one host: for the whole cluster collect them in a directory and give it with
    --from.

    Exit status: 0 there were runs of hooks in that time; 1 there were none; 2 wrong usage, or a log cannot be read.
    """
    log = opened_log(installation, sources)
    with reading(sources):
        lines, now = log.lines(LineFilter(since=since, until=until)), time.time()
        summary = summarize(lines, epoch(until) if until else now, by_hour=_is_short(since, until))
    if log.broken:
        warn(f"skipped {log.broken} unreadable lines")
    if not summary.runs:
        warn("no hook ran in that time")
        raise click.exceptions.Exit(NOTHING)
    written = {name: path for name, path in files.items() if path}
    for name, path in written.items():
        _write(path, forms()[name].text(summary, timestamp(time.time())))
    if written:
        return
    if as_json:
        show_json(as_objects(summary._asdict()))
        return
    _show(summary)


def _is_short(since: str, until: str | None) -> bool:
    """Return whether hours tell more than days. Both moments sort as text."""
    return since >= timestamp(time.time() - HOURLY) or (until is not None and until[:10] <= since[:10])


def _write(path: str, text: str) -> None:
    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        fail(error)
    say(f"wrote {path}, {format_size(os.path.getsize(path))}")


def _show(summary: Summary) -> None:
    whose = f"{', '.join(summary.clusters)}: " if summary.clusters else ""
    say(f"{whose}{summary.first} to {summary.last}, {counted(summary.nodes, 'node')}")
    imports, caches = summary.imports, summary.caches
    sized = format_size(summary.imported_bytes) if imports.number else ""
    added = format_size(sum(period.imported_bytes + period.published_bytes for period in summary.periods))
    _table(
        FIGURES,
        [
            ("job starts", summary.jobs, counted(summary.users, "user")),
            ("caches that hit", caches.percent, f"{caches.hit} of {caches.hit + caches.built} of which it is known"),
            ("imports", imports.number, "; ".join(filter(None, (sized, _half(imports))))),
            ("imports avoided", summary.avoided, "uses of images on every node, less the imports"),
            ("waits for imports", summary.waits.number, _half(summary.waits)),
            ("time saved on imports", format_duration(summary.saved.seconds), _known(summary.saved, "image")),
            ("compiling saved", format_duration(summary.compiling.seconds), _known(summary.compiling, "hit")),
            ("entries published", summary.entries, ""),
            ("added to the store", added, "images and bundles; what left it again is not subtracted"),
            ("read from the store", format_size(summary.fetched_bytes), "bundles, and images that nodes unpacked"),
            *((one.name, in_units(one), "on each node") for one in summary.of_wings),
        ],
    )
    _uses("profile", summary.profiles)
    _uses("user", summary.by_user)
    _counts("whose caches began cold, and why", summary.cold)
    _counts("cold, although there were entries", summary.cold_anyway)
    _counts("entries rejected", summary.rejected)
    _counts("jobs refused", summary.refused)
    _counts("nodes drained", summary.drained)
    _counts("failures (step or event: code)", summary.failed)
    _table(
        ("hook", "p50", "p95", "p99", "longest", "runs", "failed"),
        [(hook, *map(format_duration, times[1:]), times.number, failed) for hook, failed, times in summary.hooks],
    )
    _counts("image", summary.images)


def _known(saved: Saved, what: str) -> str:
    return f"{counted(saved.counted, what)}; {saved.unknown} without an estimate"


def _uses(what: str, all_uses: Sequence[Uses]) -> None:
    _table(
        (what, "hits", *USES),
        [(uses.name, uses.percent, *uses[1:]) for uses in all_uses],
    )


def _counts(what: str, counted: Sequence[Counted]) -> None:
    _table(("times", what), [(one.times, one.name) for one in counted])


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    if rows:
        say("")
        show_table(columns, rows)


def _half(times: Times) -> str:
    return f"half within {format_duration(times.p50)}, 95% within {format_duration(times.p95)}" if times.number else ""
