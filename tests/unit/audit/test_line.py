"""The shape of a line, whatever is put into it: bounded, visible, and JSON that every reader takes."""

from __future__ import annotations

import json
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmstart.audit import line
from warmstart.audit.line import DEEPEST, LONGEST_KEY, LONGEST_VALUE, MOST_KEYS

TEXT = st.text(max_size=40) | st.sampled_from(["\x1b[31m", "\u202e", "a\nb", "é", "x" * 10_000])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5),
    max_leaves=10,
)


@given(st.dictionaries(TEXT, VALUES, max_size=6))
def test_any_fields_become_a_bounded_visible_line(fields: dict[str, object]) -> None:
    shaped = line.shaped(fields)
    text = json.dumps(shaped, allow_nan=False, ensure_ascii=False)
    assert all(char.isprintable() or char == "\n" for char in text)
    assert shaped["schema"] == line.SCHEMA
    for key, value in shaped.items():
        assert len(key) < 12 * LONGEST_KEY
        assert len(json.dumps(value)) < 12 * LONGEST_VALUE
    assert line.decoded(json.dumps(shaped).encode()) == shaped


@given(TEXT)
def test_what_does_not_print_is_written_out(text: str) -> None:
    shown = line.visible(text)
    assert shown.isprintable()
    assert shown == text or not text.isprintable()
    if "\\" not in text and text.isascii():
        assert shown.encode().decode("unicode_escape") == text


def test_a_traceback_keeps_its_lines() -> None:
    """Under its own key only: elsewhere a line end could fake a line."""
    shown = line.shaped({"traceback": "a\n\tb\x1b", "reason": "a\nb"})
    assert (shown["traceback"], shown["reason"]) == ("a\n\tb\\x1b", "a\\nb")


def test_what_is_cut_says_so() -> None:
    shown = line.shaped({"text": "a" * LONGEST_VALUE + "b" * LONGEST_VALUE})["text"]
    assert isinstance(shown, str)
    assert shown.startswith("a")
    assert shown.endswith("b")
    assert f"[cut: {LONGEST_VALUE} characters]" in shown
    many = line.bounded({f"k{number}": number for number in range(MOST_KEYS + 3)})
    assert (len(many), many["[cut]"]) == (MOST_KEYS + 1, "3 more")
    items = line.bounded({"items": list(range(5000))})["items"]
    assert isinstance(items, list)
    assert items[-1] == f"[cut: {5000 - len(items) + 1} more]"
    mapping = line.bounded({"map": {f"{number}" * 50: number for number in range(500)}})["map"]
    assert isinstance(mapping, dict)
    assert mapping["[cut]"] == f"{500 - len(mapping) + 1} more"
    deep: object = "bottom"
    for _ in range(DEEPEST + 2):
        deep = [deep]
    assert "[cut: nested too deep]" in json.dumps(line.bounded({"deep": deep}))


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf"), 1 << 63, -(1 << 64), 10**400])
def test_numbers_that_readers_do_not_have_are_texts(number: float) -> None:
    shown = line.bounded({"n": number})["n"]
    assert isinstance(shown, str)
    assert len(shown) < 2 * LONGEST_VALUE
    assert line.bounded({"n": (1 << 63) - 1})["n"] == (1 << 63) - 1


@given(st.floats(0, 200e9))
def test_times_sort_as_text(seconds: float) -> None:
    text = line.timestamp(seconds)
    assert len(text) == len("2026-01-31T09:30:00.250Z")
    assert abs(datetime.fromisoformat(text.replace("Z", "+00:00")).timestamp() - seconds) < 0.002
    assert line.timestamp(seconds + 0.002) > text


@given(st.binary())
def test_any_bytes_are_an_object_or_nothing(raw: bytes) -> None:
    assert isinstance(line.decoded(raw), dict | None)
    assert line.decoded(b"[" * 100_000) is None
    assert line.decoded(b"[1]") is None
