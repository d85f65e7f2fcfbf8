"""Counting stays within its bounds, and says what it has not told apart."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmstart.report.counting import Durations, Tally, top


@given(st.lists(st.integers(0, 50), max_size=300))
def test_a_tally_is_bounded_and_loses_nothing(numbers: list[int]) -> None:
    tally = Tally[str](most=10)
    for number in numbers:
        tally.add(str(number))
        tally.add("often")
    assert len(tally) <= 10
    assert sum(count for _, count in top(tally, 3)) == 2 * len(numbers)
    assert dict(tally.items()).get("often", 0) == len(numbers)


@given(st.lists(st.floats(0.001, 10_000), min_size=1), st.sampled_from([0.5, 0.95, 0.99, 1.0]))
def test_quantiles_are_exact_to_three_percent(durations: list[float], share: float) -> None:
    found = Durations()
    for seconds in durations:
        found.add(seconds)
    ordered = sorted(durations)
    exact = next(value for number, value in enumerate(ordered, 1) if number >= share * len(ordered))
    assert found.quantile(share) == pytest.approx(exact, rel=0.031)
    assert found.quantile(share) <= found.longest == ordered[-1]
