"""The shape of a line, whatever is put into it: bounded, visible, and JSON that every reader takes."""

from __future__ import annotations

import json
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmstart.audit import line
from warmstart.audit.line import CUT, DEEPEST, LONGEST

TEXT = st.text(max_size=40) | st.sampled_from(["\x1b[31m", "\u202e", "a\nb", "é", "x" * 10_000])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXT,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5),
    max_leaves=10,
)


@given(st.dictionaries(TEXT, VALUES, max_size=20))
def test_any_fields_become_a_short_visible_line(fields: dict[str, object]) -> None:
    shaped = line.shaped(fields)
    text = json.dumps(shaped, allow_nan=False, ensure_ascii=False)
    assert all(char.isprintable() or char == "\n" for char in text)
    assert shaped["schema"] == line.SCHEMA
    written = line.encoded(shaped).encode() + b"\n"
    assert len(written) <= LONGEST
    assert written == json.dumps(json.loads(written), separators=(",", ":")).encode() + b"\n"
    assert line.decoded(written) == shaped


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
    shown = line.shaped({"text": "a" * LONGEST + "b" * LONGEST})["text"]
    assert isinstance(shown, str)
    assert shown.startswith("aa")
    assert shown.endswith("bb")
    assert f"[cut, of {2 * LONGEST} characters]" in shown
    items = line.shaped({"items": list(range(5000))})["items"]
    assert isinstance(items, list)
    assert items[-1] == f"[cut: {5000 - len(items) + 1} more]"
    objects = line.shaped({"items": [{"image": "x" * 500}] * 100})["items"]
    assert isinstance(objects, list)
    assert objects[-1] == {"[cut]": 100 - len(objects) + 1}  # jq goes through them all
    mapping = line.shaped({"map": {f"{number}": {"n": number} for number in range(500)}})["map"]
    assert isinstance(mapping, dict)
    assert mapping["[cut]"] == {"[cut]": 500 - len(mapping) + 1}
    deep: object = "bottom"
    for _ in range(DEEPEST + 2):
        deep = [deep]
    assert CUT in json.dumps(line.shaped({"deep": deep}))


def test_where_that_is_not_enough_whole_fields_give_way() -> None:
    """The longest first; what names the line stays."""
    long = {f"long{number}": {f"{key}": ["x" * 60] * 3 for key in range(12)} for number in range(20)}
    shaped = line.shaped({**long, "event": "hook.finished", "outcome": "ok", "head": True})
    assert (shaped["event"], shaped["outcome"], shaped["head"], shaped["long0"]) == ("hook.finished", "ok", True, CUT)
    assert shaped["long19"] != CUT


@pytest.mark.parametrize(
    "number",
    [float("nan"), float("inf"), -float("inf"), 1 << 63, -(1 << 64), 1 << 20_000],
    ids=lambda number: hex(number)[:9] if isinstance(number, int) else str(number),
)
def test_numbers_that_readers_do_not_have_are_texts(number: float) -> None:
    assert isinstance(line.shaped({"n": number})["n"], str)
    assert line.shaped({"n": (1 << 63) - 1})["n"] == (1 << 63) - 1


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
