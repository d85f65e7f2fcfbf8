"""Text, JSON, torch's records, and bytes of which only so much can be said."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lib.judging import SAME_STAGE, Reason
from warmstart.profiles.formats import plain


@SAME_STAGE
@given(st.binary(max_size=60) | st.text(max_size=30).map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_text_is_text(reason: Reason, content: bytes) -> None:
    try:
        good = bool(content.decode()) and bool(content.strip()) and b"\0" not in content
    except UnicodeDecodeError:
        good = False
    found = reason({"f": content}, lambda files: plain.check_text(files, "f"))
    assert found == (None if good else "text-malformed")


@SAME_STAGE
@given(st.binary(max_size=40) | st.text('[]{}"1,:a nul', max_size=20).map(str.encode))
def test_json_is_what_python_takes_for_it(reason: Reason, content: bytes) -> None:
    """One value to the end; an object or rows where those are needed."""
    try:
        value = json.loads(content)
        is_json = True
    except ValueError:
        value, is_json = None, False
    rows = is_json and isinstance(value, list)
    rows = rows and all(isinstance(row, list) and all(isinstance(cell, str) for cell in row) for row in value)
    checks = ((plain.check_json, is_json), (plain.read_json, isinstance(value, dict)), (plain.read_rows, rows))
    for check, good in checks:
        found = reason({"f": content}, lambda files, check=check: check(files, "f"))  # type: ignore[misc]
        assert found == (None if good else "json-malformed")


def test_json_that_is_too_deep_or_too_long(reason: Reason) -> None:
    assert reason({"f": b"[" * 200_000}, lambda files: plain.check_json(files, "f")) == "json-malformed"
    long = b" " * (plain.LARGEST_JSON + 1)
    assert reason({"f": long}, lambda files: plain.check_json(files, "f")) == "too-large"


@SAME_STAGE
@given(st.binary(max_size=20), st.integers(0, 2 * plain.PAGE))
def test_what_ends_in_a_page_of_zeroes_was_not_written(reason: Reason, start: bytes, zeroes: int) -> None:
    content = start + bytes(zeroes)
    expected = None if content[-plain.PAGE :].strip(b"\0") else "blob-zeroes" if content else "blob-empty"
    assert reason({"f": content}, lambda files: plain.check_written(files, "f")) == expected
    expected = None if content else "blob-empty"
    assert reason({"f": content}, lambda files: plain.check_not_empty(files, "f")) == expected


@pytest.mark.parametrize(("limit", "said"), [(5, None), (4, "too-large")])
def test_an_entrys_files_count_together(reason: Reason, limit: int, said: str | None) -> None:
    assert reason({"a": b"123", "b": b"45"}, lambda files: plain.check_total(files, limit)) == said
