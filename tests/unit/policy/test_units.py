"""Durations and sizes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmstart.policy.units import BYTES, SECONDS, format_duration, format_size, parse_duration, parse_size

NUMBERS = st.integers(1, 999_999_999)


@given(NUMBERS, st.sampled_from(sorted(SECONDS)))
def test_a_number_and_a_unit_is_a_duration(number: int, unit: str) -> None:
    assert parse_duration(f"{number}{unit}") == number * {"s": 1, "m": 60, "h": 3600, "d": 86400}[unit]


@given(NUMBERS, st.sampled_from(sorted(BYTES)))
def test_a_number_and_a_unit_is_a_size(number: int, unit: str) -> None:
    power = ["B", "KiB", "MiB", "GiB", "TiB"].index(unit)
    assert parse_size(f"{number}{unit}") == number * 1024**power


@pytest.mark.parametrize(
    "text", [30, 1.5, None, "", "30", "0s", "-1s", "1.5h", " 4m", "4m ", "4m\n", "4 m", "4min", "٤m", "1e3s"]
)
def test_other_durations_are_refused_with_an_example(text: object) -> None:
    with pytest.raises(ValueError, match="its unit"):
        parse_duration(text)


@pytest.mark.parametrize("text", [1024, "1024", "0B", "5G", "5GB", "5gib", "1.5GiB", "5GiB\n", "9999999999B"])
def test_other_sizes_are_refused_with_an_example(text: object) -> None:
    with pytest.raises(ValueError, match="its unit"):
        parse_size(text)


@given(st.text())
def test_any_text_is_a_quantity_or_a_value_error(text: str) -> None:
    for parse in (parse_duration, parse_size):
        try:
            assert parse(text) > 0
        except ValueError as error:
            assert str(error).isascii()  # noqa: PT017 - either way is right


@pytest.mark.parametrize(
    ("seconds", "shown"), [(0, "0s"), (0.0314, "31ms"), (1, "1s"), (90, "1.5m"), (7200, "2h"), (10**6, "11.6d")]
)
def test_durations_as_the_policy_writes_them(seconds: float, shown: str) -> None:
    assert format_duration(seconds) == shown


@pytest.mark.parametrize(("count", "shown"), [(0, "0B"), (1023, "1023B"), (1536, "1.5KiB"), (1 << 50, "1024TiB")])
def test_sizes_as_the_policy_writes_them(count: int, shown: str) -> None:
    assert format_size(count) == shown
