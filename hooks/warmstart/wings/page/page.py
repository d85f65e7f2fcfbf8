"""The report as one HTML page: no script, no request, light and dark, printable.

The page forbids itself every request (Content-Security-Policy), since names in it come from users and registries.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from warmstart.policy.units import format_duration, format_size
from warmstart.report.story import COLD
from warmstart.report.summary import Summary, Uses, counted
from warmstart.wings.page import charts
from warmstart.wings.page.charts import Series

METHOD = (
    "On the first node of each job, an image that was in the store saves its size at the mean rate of imports, less "
    "the time that the hook took. An image for which the job waited saves nothing."
)
# Drawn, because browsers print no backgrounds unless they are asked to.
KEY = '<svg class="key" viewBox="0 0 10 10" aria-hidden="true"><rect class="{}" width="10" height="10" rx="2"/></svg>'
SCALE = (0.001, 1800.0)  # seconds, of durations

_STYLE = """
:root { color-scheme: light dark; --page: #fcfcfb; --card: #ffffff; --ink: #1f1f1d; --soft: #6b6a66; --line: #e3e2de;
  --a: #2a78d6; --b: #eb6834; }
@media (prefers-color-scheme: dark) { :root { --page: #161615; --card: #1f1f1e; --ink: #f0efeb; --soft: #a3a29c;
  --line: #363633; --a: #4a93ea; --b: #e5703d; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 24px; max-width: 1040px; background: var(--page); color: var(--ink);
  font: 15px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1 { font-size: 24px; margin: 0; } h2 { font-size: 16px; margin: 0 0 10px; }
p { margin: 4px 0; } .soft, figcaption, th.unit { color: var(--soft); }
.tiles, .grid2 { display: grid; gap: 16px; margin: 16px 0; }
.tiles { grid-template-columns: repeat(auto-fit, minmax(170px, 1fr)); }
.grid2 { grid-template-columns: repeat(auto-fit, minmax(min(430px, 100%), 1fr)); }
section, .tile { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 16px;
  min-width: 0; overflow-x: auto; }
.tile b { display: block; font-size: 26px; line-height: 1.2; font-variant-numeric: tabular-nums; }
svg { display: block; width: 100%; height: auto; } svg.bar { height: 12px; min-width: 90px; }
.a { fill: var(--a); } .b { fill: var(--b); } .track { fill: var(--line); } .grid { stroke: var(--line); }
.tick { fill: var(--soft); font-size: 11px; }
.name { white-space: nowrap; } svg.key { display: inline-block; width: 10px; height: 10px; margin: 0 5px 0 12px; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; font-weight: normal; padding: 4px 10px 4px 0; border-top: 1px solid var(--line);
  overflow-wrap: anywhere; vertical-align: middle; }
td:first-child { min-width: 5.6em; }
thead th { color: var(--soft); border: 0; overflow-wrap: normal; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; padding-right: 0; padding-left: 10px; }
td.wide { width: 38%; } td.bar { width: 26%; }
footer { margin-top: 20px; }
@media print, (max-width: 480px) { body { padding: 12px; } section, .tile { padding: 10px; }
  td.bar { width: 60px; } svg.bar { min-width: 50px; } }
@media (max-width: 480px) { table.many tr { display: grid; gap: 0 6px; grid-template-columns: repeat(5, 1fr); }
  table.many tr > * { border: 0; padding-left: 0; } table.many tr > :nth-child(-n+2) { grid-column: 1 / -1; }
  table.many td:first-child { border-top: 1px solid var(--line); } }
@media print { :root { color-scheme: light; --page: #ffffff; --card: #ffffff; --ink: #000000; --soft: #555555;
  --line: #cccccc; --a: #2a78d6; --b: #eb6834; } body { font-size: 9pt; padding: 2px; }
  .tiles { grid-template-columns: repeat(4, 1fr); } .grid2 { grid-template-columns: 1fr 1fr; }
  section, .tile { break-inside: avoid; } rect { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""


def page(summary: Summary, days: Mapping[str, Summary], made: str) -> str:
    """Return the page; `days` have the summaries of days (2026-01-31), `made` is when, for the foot."""
    title = escape(": ".join(filter(None, ("warmstart report", ", ".join(summary.clusters)))))
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{title}</title><style>{_STYLE}</style></head><body>"
        f'<h1>{title}</h1><p class="soft">{escape(_when(summary))}</p>'
        f'{_tiles(summary)}<div class="grid2">{_figures(days)}{_tables(summary)}</div>{_times(summary)}'
        f'<footer class="soft"><p>{escape(METHOD)}</p><p>Made {escape(made)}.</p></footer></body></html>\n'
    )


def _when(summary: Summary) -> str:
    if not summary.runs:
        return ""
    return f"{summary.first} to {summary.last}: {counted(summary.runs, 'run')} on {counted(summary.nodes, 'node')}"


def _tiles(summary: Summary) -> str:
    uses = summary.caches
    tiles = [
        ("job starts", f"{summary.jobs:,}", f"of {counted(summary.users, 'user')}"),
        ("caches that hit", uses.percent, f"{uses.hit:,} of {uses.hit + uses.built:,} of which it is known"),
        ("imports avoided", f"{summary.avoided:,}", f"{summary.imports:,} were done"),
        ("time saved on imports", "-" if summary.saved is None else format_duration(summary.saved), ""),
    ]
    shown = "".join(
        f'<div class="tile">{escape(name)}<b>{escape(value)}</b><span class="soft">{escape(rest)}</span></div>'
        for name, value, rest in tiles
    )
    return f'<div class="tiles">{shown}</div>'


def _figures(days: Mapping[str, Summary]) -> str:
    labels, of_days = [day[5:] for day in days], [*days.values()]
    jobs = [Series("jobs", "a", [day.jobs for day in of_days])]
    uses = [day.caches for day in of_days]
    caches = [Series("hit", "a", [one.hit for one in uses]), Series("built", "b", [one.built for one in uses])]
    images = [
        Series("no import", "a", [day.avoided for day in of_days]),
        Series("imported", "b", [day.imports for day in of_days]),
    ]
    figures = (("Job starts", jobs), ("Caches", caches), ("Images", images))
    return "".join(_figure(title, labels, series) for title, series in figures)


def _figure(title: str, labels: Sequence[str], series: list[Series]) -> str:
    keys = "".join(
        f'<span class="name">{KEY.format(one.tone)}{escape(one.name)}</span> ' for one in series if len(series) > 1
    )
    drawn = charts.columns(labels, series, title)
    return f'<section><h2>{escape(title)}<span class="soft">{keys}</span></h2>{drawn}</section>'


def _tables(summary: Summary) -> str:
    return (
        _uses("Hit rate by profile", summary.profiles)
        + _uses("Hit rate by user", summary.by_user)
        + _counts("Whose caches began cold, and why", _in_words(summary.cold))
        + _more(summary)
        + _counts("Failures", summary.failures)
    )


def _uses(title: str, all_uses: Sequence[Uses]) -> str:
    rows = [
        (_cell(uses.name), f'<td class="bar">{charts.bar([("a", uses.hit), ("b", uses.built)])}</td>',
         *map(_numeric, (uses.percent, f"{uses.hit + uses.built:,}", f"{uses.unknown:,}")))
        for uses in all_uses
    ]  # fmt: skip
    return _table(title, ("", "", "hits", "of", "unknown"), rows)


def _counts(title: str, numbers: Mapping[str, int]) -> str:
    most = max(numbers.values(), default=0)
    rows = [
        (_cell(name), f'<td class="bar">{charts.bar([("a", number)], most)}</td>', _numeric(f"{number:,}"))
        for name, number in numbers.items()
    ]
    return _table(title, (), rows)


def _in_words(cold: Mapping[str, int]) -> dict[str, int]:
    """Return the same numbers, with the reasons for who has not read docs/reference/audit.md."""
    parts = [(*name.partition(": "), number) for name, number in cold.items()]
    return {f"{user}{colon}{COLD.get(reason, reason)}": number for user, colon, reason, number in parts}


def _more(summary: Summary) -> str:
    rows = [
        ("bytes imported", format_size(summary.imported_bytes)),
        ("entries published", f"{summary.entries:,}"),
        ("bytes of these", format_size(summary.published_bytes)),
    ]
    return _table("Imports and harvests", (), [(_cell(name), _numeric(value)) for name, value in rows])


def _times(summary: Summary) -> str:
    rows = [
        (_cell(one.what), f'<td class="wide">{charts.spread(one.p50, one.p95, one.p99, SCALE)}</td>',
         *(_numeric(format_duration(value)) for value in (one.p50, one.p95, one.p99)),
         _numeric(f"{one.number:,}"), _numeric(f"{one.failed:,}"))
        for one in summary.times
    ]  # fmt: skip
    heads = ("", "1 ms to 30 min, logarithmic", "p50", "p95", "p99", "times", "failed")
    return _table("What took how long", heads, rows, "many")


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "few") -> str:
    if not rows:
        return f'<section><h2>{escape(title)}</h2><p class="soft">none</p></section>'
    above = "".join(f"<th{'' if number < 2 else ' class=n'}>{escape(head)}</th>" for number, head in enumerate(heads))
    head = f"<thead><tr>{above}</tr></thead>" if heads else ""
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return f"<section><h2>{escape(title)}</h2><table class={kind}>{head}<tbody>{body}</tbody></table></section>"


def _cell(text: str) -> str:
    return f"<td>{escape(text).replace('/', '/<wbr>')}</td>"


def _numeric(text: str) -> str:
    return f'<td class="n">{escape(text)}</td>'
