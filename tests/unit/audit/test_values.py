"""Values of lines that another release, or a broken disk, wrote."""

from __future__ import annotations

import math

import pytest

from warmstart.audit import values

LINE: dict[str, object] = {"text": "a", "number": 1.5, "list": ["a", 1], "object": {"a": 2, "b": "x"}, "flag": True}


def test_values_of_the_right_type() -> None:
    """As they are; of a list or an object, what fits."""
    assert (values.text(LINE, "text"), values.number(LINE, "number"), values.texts(LINE, "list")) == ("a", 1.5, ["a"])
    assert (values.counts(LINE, "object"), values.words(LINE, "object")) == ({"a": 2}, {"b": "x"})


@pytest.mark.parametrize("key", ["missing", "flag", "list"])
def test_others_are_empty(key: str) -> None:
    """No reader fails because of one."""
    assert (values.text(LINE, key), values.number(LINE, key), values.mapping(LINE, key)) == ("", 0.0, {})


@pytest.mark.parametrize("number", [math.nan, math.inf, -1])
def test_numbers_that_nothing_can_be_added_to(number: float) -> None:
    """JSON readers take them."""
    assert values.number({"x": number}, "x") == 0.0
