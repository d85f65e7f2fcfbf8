"""Charts show values where they are, and names as text only."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

import pytest

from warmstart.wings.page import charts
from warmstart.wings.page.charts import Series

HOSTILE = '<script>&"'


def drawn(svg: str) -> ET.Element:
    """Parse a chart: it is well-formed."""
    return ET.fromstring(svg)


def test_columns_are_stacked() -> None:
    series = [Series("warm", "a", [30, 0]), Series("cold", "b", [10, 20])]
    chart = drawn(charts.columns(["mon", "tue"], series, lambda value: f"{value:.0f}", HOSTILE))
    first, second, third = chart.iter("rect")
    assert [rect.get("class") for rect in (first, second, third)] == ["a", "b", "b"]
    assert float(second.get("y", 0)) < float(first.get("y", 0))
    assert float(second.get("y", 0)) + float(second.get("height", 0)) < float(first.get("y", 0)) + 0.1
    assert [title.text for title in chart.iter("title")] == ["mon: warm 30, cold 10", "tue: warm 0, cold 20"]
    assert chart.get("aria-label") == HOSTILE


def test_labels_are_thinned() -> None:
    labels = [str(number) for number in range(100)]
    chart = drawn(charts.columns(labels, [Series("x", "a", [1.0] * 100)], str, "x"))
    assert len([text for text in chart.iter("text") if text.get("text-anchor") == "middle"]) <= 8


@pytest.mark.parametrize(
    ("largest", "base", "ticks"),
    [
        (0, 10, [0, 1]),
        (1, 10, [0, 1]),
        (2, 10, [0, 1, 2]),
        (0.5, 10, [0, 0.2, 0.4, 0.6]),
        (7, 10, [0, 2, 4, 6, 8]),
        (600, 10, [0, 200, 400, 600]),
        (70 << 30, 1024, [0, 20, 40, 60, 80]),
    ],
)
def test_ticks_are_round(largest: float, base: int, ticks: list[int]) -> None:
    assert charts._ticks(largest, base) == pytest.approx([tick * (1 << 30 if base == 1024 else 1) for tick in ticks])


def test_no_values_are_no_error() -> None:
    assert drawn(charts.columns([], [Series("x", "a", [])], str, "x")).get("role") == "img"
    assert "rect" in charts.bar([("a", 0)], 0)


def test_a_spread_is_logarithmic() -> None:
    found = re.findall(r'class="(\w+)" x="([\d.]+)"', charts.spread(0.01, 0.1, 1000, (0.001, 10)))
    assert found == [("track", "0"), ("a", "25.00"), ("b", "50.00")]
