"""Charts as inline SVG. Colours are classes `a` and `b` of the page's style; every text is escaped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

_WIDTH, _HEIGHT = 460, 190
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 4, 10, 24
_TICKS = 4
_MOST_LABELS = 8
_GAP = 2  # pixels between two parts of a column


class Series(NamedTuple):
    """Values for each label of a chart."""

    name: str
    tone: str  # class of its colour
    values: Sequence[int]


def columns(labels: Sequence[str], series: Sequence[Series], name: str) -> str:
    """Return stacked columns, one for each label; `name` is what the chart is about."""
    totals = [sum(values) for values in zip(*(one.values for one in series), strict=True)]
    ticks = _ticks(max(totals, default=0))
    plot = _HEIGHT - _TOP - _BOTTOM
    step = (_WIDTH - _LEFT - _RIGHT) / max(len(labels), 1)
    width = min(step * 0.7, 40)
    parts = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(name)}">']
    for tick in ticks:
        y = _HEIGHT - _BOTTOM - plot * tick / ticks[-1]
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{tick:,}</text>')
    every = math.ceil(len(labels) / _MOST_LABELS)
    for number, label in enumerate(labels):
        x = _LEFT + step * (number + 0.5)
        told = ", ".join(f"{one.name} {one.values[number]:,}" for one in series)
        parts.append(f"<g><title>{escape(f'{label}: {told}')}</title>")
        y = float(_HEIGHT - _BOTTOM)
        for one in series:
            height = plot * one.values[number] / ticks[-1]
            if height > 0:
                drawn = max(height - _GAP, 1.0) if y < _HEIGHT - _BOTTOM else height
                parts.append(
                    f'<rect class="{one.tone}" x="{x - width / 2:.1f}" y="{y - height:.1f}" width="{width:.1f}" '
                    f'height="{drawn:.1f}" rx="2"/>'
                )
            y -= height
        parts.append("</g>")
        if number % every == 0:
            parts.append(
                f'<text class="tick" x="{x:.1f}" y="{_HEIGHT - 6}" text-anchor="middle">{escape(label)}</text>'
            )
    parts.append("</svg>")
    return "".join(parts)


def bar(parts: Sequence[tuple[str, float]], longest: float = 0.0) -> str:
    """Return one horizontal bar of parts (tone, value), as wide as its share of `longest`, by default of all."""
    longest = longest or sum(value for _, value in parts)
    x, drawn = 0.0, []
    for tone, value in parts:
        width = 100 * value / longest if longest else 0.0
        drawn.append(f'<rect class="{tone}" x="{x:.2f}" y="0" width="{width:.2f}" height="10"/>')
        x += width
    return f'<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">{"".join(drawn)}</svg>'


def spread(low: float, middle: float, high: float, ends: tuple[float, float]) -> str:
    """Return a line from `low` to `high` with a mark at `middle`, on a logarithmic scale between `ends`."""
    first, last = (math.log10(end) for end in ends)

    def at(value: float) -> float:
        return 100 * (math.log10(min(max(value, ends[0]), ends[1])) - first) / (last - first)

    start, end = at(low), at(high)
    return (
        '<svg class="bar" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect class="track" x="0" y="4.5" width="100" height="1"/>'
        f'<rect class="a" x="{start:.2f}" y="3" width="{max(end - start, 0.6):.2f}" height="4"/>'
        f'<rect class="b" x="{at(middle):.2f}" y="0" width="0.8" height="10"/></svg>'
    )


def _ticks(largest: int) -> list[int]:
    """Return round numbers from 0 up to at least `largest`: steps of one, two or five, times a power of ten."""
    power = 10 ** math.floor(math.log10(max(largest / _TICKS, 1)))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor * _TICKS >= largest)
    return [step * number for number in range(max(math.ceil(largest / step), 1) + 1)]
