"""A Python literal is read as Python reads it, without Python's parser."""

from __future__ import annotations

import ast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.judging import SAME_STAGE, Reason
from warmstart.profiles.entry_files import EntryFiles
from warmstart.profiles.formats import literal

TEXTS = st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters="'\"\\"), max_size=8)
KEYS = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**17), 10**17) | TEXTS,
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=4,
)
VALUES = st.recursive(
    KEYS,
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=12,
)


def read(files: EntryFiles) -> dict[object, object]:
    """Read the file."""
    return literal.read_dict(files, "f")


@SAME_STAGE
@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_what_repr_writes_is_read_back(reason: Reason, value: dict[object, object]) -> None:
    """Every type that an index has."""
    found: list[dict[object, object]] = []
    assert reason({"f": f" {value!r}\n".encode()}, lambda files: found.append(read(files))) is None
    assert found == [value]


@SAME_STAGE
@given(st.text("{}()[],: '\"ab01-None.\n\\#", max_size=40))
def test_what_is_read_is_what_python_reads(reason: Reason, text: str) -> None:
    """Lists become tuples; all else is refused."""
    found: list[dict[object, object]] = []
    if reason({"f": text.encode()}, lambda files: found.append(read(files))) is None:
        assert found == [frozen(ast.literal_eval(text.strip()))]


def frozen(value: object) -> object:
    """Return a value with tuples for lists."""
    if isinstance(value, dict):
        return {frozen(key): frozen(item) for key, item in value.items()}
    return tuple(map(frozen, value)) if isinstance(value, list | tuple) else value


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{'a': 1, }", None),
        ("{1: [1, 2,], 2: (), 3: {}}", None),
        ("{'a' 1}", "literal-malformed"),
        ("{'a': 1} {}", "literal-malformed"),
        ("[1]", "literal-malformed"),
        ("{{}: 1}", "literal-malformed"),
        ("{({},): 1}", "literal-malformed"),
        ("{'a\\n': 1}", "literal-malformed"),
        ("{1: 1.5}", "literal-malformed"),
        ("{1: 1000000000000000000000}", "literal-malformed"),
        ("{1: Nonesuch}", "literal-malformed"),
        ("{1: __import__('os')}", "literal-malformed"),
        ("{1: " + "[" * 15 + "]" * 15 + "}", None),
        ("{1: " + "[" * 16 + "]" * 16 + "}", "literal-malformed"),
        ("", "literal-malformed"),
    ],
)
def test_what_is_no_literal_of_ours(reason: Reason, text: str, said: str | None) -> None:
    """Escapes, floats, deep nesting and code are refused."""
    assert reason({"f": text.encode()}, read) == said


def test_bytes_that_are_no_text(reason: Reason) -> None:
    """Nor more than an index can have."""
    assert reason({"f": b"{1: '\xff'}"}, read) == "literal-malformed"
    assert reason({"f": b" " * (literal.LARGEST + 1)}, read) == "too-large"
