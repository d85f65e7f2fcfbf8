"""The charts of what grows."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from tools.growth.chart import Series, columns


def test_columns_are_stacked() -> None:
    """One group for each label, with its sum; names are text, and a chart of nothing is one."""
    series = [Series("prolog", "a", [30, 0]), Series("epilog", "b", [10, 1000])]
    chart = ET.fromstring(columns(["1", "<b>"], series, '"calls"'))
    assert chart.get("aria-label") == '"calls"'
    low, high = chart.findall(".//{*}g")
    assert [text.text for group in (low, high) for text in group.findall("{*}text")] == ["40", "1", "1,000", "<b>"]
    first, second = ((float(bar.get("y", 0)), float(bar.get("height", 0))) for bar in low.findall("{*}rect"))
    assert first[0] == second[0] + second[1]
    assert [float(bar.get("height", 0)) for bar in high.findall("{*}rect")] == [0, 150]
    assert ET.fromstring(columns(["0"], [Series("x", "a", [0])], "x")).tag.endswith("svg")
