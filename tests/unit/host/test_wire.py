"""What crosses between processes has the type that the receiver expects, or is refused."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmstart.host import wire
from warmstart.lean import Literal


class Point(NamedTuple):
    """A sample with one field of each simple kind."""

    name: str
    x: int
    weight: float = 1.0
    known: bool = False


class Shape(NamedTuple):
    """A sample that holds others."""

    points: list[Point]
    by_name: dict[str, Point]
    centre: Point | None = None


POINT: list[Any] = ["a", 1, 2.5, True]


@pytest.mark.parametrize(
    ("expected", "value", "result"),
    [
        (str, "a", "a"),
        (float, 3, 3.0),
        (int | None, None, None),
        (str | int, 7, 7),
        (Literal["a", "b"], "b", "b"),
        (list[str], ["a", "b"], ["a", "b"]),
        (Sequence[str], ["a"], ["a"]),
        (tuple[str, ...], ["a", "b"], ("a", "b")),
        (tuple[str, int], ["a", 1], ("a", 1)),
        (dict[str, list[int]], {"a": [1]}, {"a": [1]}),
        (Point, POINT, Point("a", 1, 2.5, True)),
        (Shape, [[POINT], {"a": POINT}, None], Shape([Point(*POINT)], {"a": Point(*POINT)})),
    ],
)
def test_a_value_of_the_expected_type_arrives(expected: Any, value: Any, result: Any) -> None:  # noqa: ANN401
    found = wire.decode(expected, value)
    assert found == result
    assert type(found) is type(result)


@pytest.mark.parametrize(
    ("expected", "value"),
    [
        (str, 1),
        (int, True),  # a bool is an int only in Python
        (bool, 1),
        (float, "1"),
        (float, True),
        (int | None, "a"),
        (Literal["a"], "b"),
        (Literal["a"], ["a"]),
        (list[str], "ab"),
        (list[str], ["a", 1]),
        (list[str], {"a": 1}),
        (tuple[str, int], ["a"]),
        (dict[str, int], {"a": "b"}),
        (dict[str, int], [1]),
        (Point, ["a", 1, 2.5]),
        (Point, ["a", "1", 2.5, True]),
        (Point, {"name": "a"}),
        (Shape, [[["a"]], {}, None]),
    ],
)
def test_any_other_value_is_refused(expected: Any, value: Any) -> None:  # noqa: ANN401
    """A less trusted process cannot put a value of another type in its place."""
    with pytest.raises(wire.WireMismatch):
        wire.decode(expected, value)


@pytest.mark.parametrize("expected", [object, set[str], dict[int, str], bytes])
def test_other_types_cannot_be_sent(expected: Any) -> None:  # noqa: ANN401
    with pytest.raises(TypeError):
        wire.decode(expected, ["a"])


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


@given(ANYTHING)
def test_nothing_else_than_a_mismatch_is_raised(value: Any) -> None:  # noqa: ANN401
    try:
        found = wire.decode(Shape, value)
    except wire.WireMismatch:
        return
    assert type(found) is Shape


def test_an_object_becomes_a_named_tuple() -> None:
    """As `_asdict` wrote it; what has a default may lack, and what a newer release added is ignored."""
    assert wire.from_object(Point, {"name": "a", "x": 1}) == Point("a", 1)
    assert wire.from_object(Point, {"x": 1, "weight": 2, "name": "a"}) == Point("a", 1, 2.0)
    assert wire.from_object(Point, {"name": "a", "x": 1, "y": 2}) == Point("a", 1)


@pytest.mark.parametrize(
    "value",
    [["a", 1], {"name": "a"}, {"name": "a", "x": "1"}, {"x": 1, "y": 2}, None, {"name": "a", "x": None}],
)
def test_an_object_of_other_fields_is_refused(value: object) -> None:
    with pytest.raises(wire.WireMismatch):
        wire.from_object(Point, value)


@pytest.mark.parametrize("text", ["", "{", b"\xff", "[" * 100_000, '{"a":' * 100_000])
def test_what_is_no_json_is_one_error(text: str | bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        wire.parse(text)


def test_a_number_that_no_float_holds_is_no_float() -> None:
    with pytest.raises(wire.WireMismatch):
        wire.decode(float, 10**400)
