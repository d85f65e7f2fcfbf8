"""A chart of stacked columns as an SVG file, with the sum above each. Colours fit a light and a dark page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

_WIDTH, _HEIGHT, _COLUMN, _LINE = 460, 190, 40, 20
_STYLE = "text{font:11px sans-serif;fill:#667;text-anchor:middle}.a{fill:#2a6fb0}.b{fill:#d98324}"


class Series(NamedTuple):
    """Values for each label of a chart."""

    name: str
    tone: str  # class of its colour
    values: Sequence[float]


def columns(labels: Sequence[str], series: Sequence[Series], name: str) -> str:
    """Return the chart; `name` is what it is about."""
    sums = [sum(values) for values in zip(*(one.values for one in series), strict=True)]
    room = (_HEIGHT - 2 * _LINE) / max(*sums, 1)  # of one
    size = f'viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(name)}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{_STYLE}</style>']
    for number, (label, total) in enumerate(zip(labels, sums, strict=True)):
        middle, y = _WIDTH * (number + 0.5) / len(labels), float(_HEIGHT - _LINE)
        told = ", ".join(f"{one.name} {one.values[number]:,.0f}" for one in series)
        parts.append(f"<g><title>{escape(f'{label}: {told}')}</title>")
        for one in series:
            height = one.values[number] * room
            y -= height
            place = f'x="{middle - _COLUMN / 2:.1f}" y="{y:.1f}" width="{_COLUMN}" height="{height:.1f}"'
            parts.append(f'<rect class="{one.tone}" {place}/>')
        parts.append(f'<text x="{middle:.1f}" y="{y - 5:.1f}">{total:,.0f}</text>')
        parts.append(f'<text x="{middle:.1f}" y="{_HEIGHT - 6}">{escape(label)}</text></g>')
    return "".join([*parts, "</svg>\n"])
