"""Plots of the bench as SVG files: for each contestant the median, the quartiles, and the 5th and 95th percentiles.

matplotlib would bring 60 MB for rectangles and lines, so the few shapes are written here. Colours fit a light and a
dark page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from tools.bench.figures import Figure, Series

_WIDTH, _LEFT, _RIGHT = 760, 250, 80
_ROW, _HEAD, _AXIS = 20, 26, 26
_STYLE = (
    "text{font:12px sans-serif;fill:#333}.head{font-weight:bold}.value,.tick{fill:#666}.grid{stroke:#ccc}"
    ".whisker{stroke:#888;stroke-width:1.5}.box{fill:#9ab}.ours .box{fill:#2a78c2}.median{stroke:#111;stroke-width:2}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.value,.tick{fill:#aaa}.grid{stroke:#444}.median{stroke:#fff}}"
)


def show(value: float, unit: str) -> str:
    """Return a value with its unit, three digits long."""
    if unit != "ms":
        return f"{value:,.0f} {unit}".strip()
    return f"{value / 1000:.3g} s" if value >= 1000 else f"{value:.3g} ms"


def svg(figures: Sequence[Figure], name: str) -> str:
    """Return a plot of figures of one unit, on a logarithmic scale that they share."""
    rows = [(figure, [(figure.ours, "ours"), *((peer, "peer") for peer in figure.peers)]) for figure in figures]
    all_values = [value for _, lines in rows for series, _ in lines for value in series.values if value > 0]
    scale = _Scale(min(all_values), max(all_values))
    height = _AXIS + sum(_HEAD + _ROW * len(lines) for _, lines in rows)
    size = f'viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}"'
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{escape(name)}">']
    parts.append(f"<style>{_STYLE}</style>")
    for tick in scale.ticks():
        x = scale.x(tick)
        parts.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="4" y2="{height - _AXIS + 4}"/>')
        label = show(tick, figures[0].unit)
        parts.append(f'<text class="tick" x="{x:.1f}" y="{height - 6}" text-anchor="middle">{escape(label)}</text>')
    y = 0
    for figure, lines in rows:
        y += _HEAD
        parts.append(f'<text class="head" x="4" y="{y - 7}">{escape(figure.what)}</text>')
        for series, tone in lines:
            parts.append(_row(series, tone, y + _ROW / 2, scale, figure.unit))
            y += _ROW
    parts.append("</svg>\n")
    return "\n".join(parts)


class _Scale:
    def __init__(self, least: float, most: float) -> None:
        self._first = math.floor(math.log10(least) * 3) / 3
        self._last = max(math.ceil(math.log10(most) * 3) / 3, self._first + 1 / 3)

    def x(self, value: float) -> float:
        """Return where a value lies."""
        share = (math.log10(max(value, 10**self._first)) - self._first) / (self._last - self._first)
        return _LEFT + share * (_WIDTH - _LEFT - _RIGHT)

    def ticks(self) -> list[float]:
        """Return one, two and five times powers of ten, or the powers alone if there are many."""
        powers = range(math.floor(self._first), math.ceil(self._last) + 1)
        factors = (1, 2, 5) if len(powers) <= 4 else (1,)
        ends = 10**self._first * 0.999, 10**self._last * 1.001
        return [tick for power in powers for factor in factors if ends[0] <= (tick := factor * 10.0**power) <= ends[1]]


def _row(series: Series, tone: str, y: float, scale: _Scale, unit: str) -> str:
    low, first, third, high = (scale.x(series.quantile(share)) for share in (0.05, 0.25, 0.75, 0.95))
    middle, shown = scale.x(series.median), escape(show(series.median, unit))
    return (
        f'<g class="{tone}"><text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{escape(series.name)}</text>'
        f'<line class="whisker" x1="{low:.1f}" x2="{high:.1f}" y1="{y}" y2="{y}"/>'
        f'<rect class="box" x="{first:.1f}" y="{y - 5}" width="{max(third - first, 1):.1f}" height="10"/>'
        f'<line class="median" x1="{middle:.1f}" x2="{middle:.1f}" y1="{y - 7}" y2="{y + 7}"/>'
        f'<text class="value" x="{max(high, middle) + 6:.1f}" y="{y + 4}">{shown}</text></g>'
    )
