"""The bench's page and plots, from results that are made up."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tools.bench import figures, page, plots
from tools.bench.figures import Figure, Machine, Results, Series

MACHINE = Machine("A CPU", 2, 8, "6.1", "3.11.2", "slurm-wlm 22.05.8", "mksquashfs version 4.5.1", "ext2/ext3")
OURS = Series("warmstart", [30.0, 10.0, 20.0])
PEER = Series("<peer>", [40.0, 40.0, 41.0], goal=0.4)
RESULTS = Results(
    "2026-01-31", "quick", 0.5, MACHINE, [Figure("hooks", "warm prolog", OURS, [PEER])], {"hooks": "2026-02-01"}
)


def test_quantiles_are_values_that_were_seen() -> None:
    """By the nearest rank."""
    values = Series("x", [float(number) for number in range(100, 0, -1)])
    assert [values.quantile(share) for share in (0.0, 0.05, 0.5, 0.95, 1.0)] == [1, 5, 50, 95, 100]
    assert (values.median, OURS.quantile(0.95), OURS.median) == (50.5, 30, 20)


def test_results_survive_their_file(tmp_path: Path) -> None:
    """A run of some groups takes the others from the last one."""
    figures.write(RESULTS, tmp_path / "build" / "bench.json")
    assert figures.read(tmp_path / "build" / "bench.json") == RESULTS


def test_the_page_has_every_figure_and_its_plot(tmp_path: Path) -> None:
    """A ratio beside its goal; the names of contestants are text, not markup."""
    page.write(RESULTS, tmp_path / "performance.md", tmp_path / "images")
    text = (tmp_path / "performance.md").read_text()
    assert "| warm prolog | 20 ms (10 ms to 30 ms) | <peer> 40 ms, 0.50 (goal: 0.4) |" in text
    assert "](images/performance-hooks.svg)" in text
    assert "few rounds" in text
    assert "\nRun of 2026-02-01.\n" in text
    drawn = ET.fromstring((tmp_path / "images" / "performance-hooks.svg").read_text())
    shown = [element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"warm prolog", "warmstart", "<peer>", "20 ms", "40 ms", "10 ms"} <= set(shown)


@pytest.mark.parametrize(
    ("value", "unit", "shown"),
    [(0.2, "ms", "0.2 ms"), (1234.5, "ms", "1.23 s"), (12.34, "ms", "12.3 ms"), (8, "calls", "8 calls")],
)
def test_values_have_three_digits(value: float, unit: str, shown: str) -> None:
    """More would pretend a precision that they do not have."""
    assert plots.show(value, unit) == shown
