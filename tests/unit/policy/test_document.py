"""YAML as plain data with positions: what a scalar means, what is refused and where."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmstart.policy import document
from warmstart.policy.document import Document, Plain, PolicyInvalid

# PyYAML takes JSON's pairs of surrogates for two characters.
CHARACTERS = st.characters(max_codepoint=0xFFFF, exclude_categories=["Cs"])
SCALARS = st.none() | st.booleans() | st.integers(-(10**17), 10**17) | st.text(CHARACTERS, max_size=8)
PLAIN = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("abc", min_size=1), inner, max_size=3),
    max_leaves=10,
)


def read(text: str) -> Document:
    """Return a policy's document."""
    return Document([("policy.yaml", text)])


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"), ("on", "on"), ("0755", "0755"), ("12:30", "12:30"), ("1_000", "1_000"), ("1e3", "1e3"),
        ("2026-01-01", "2026-01-01"), ("0x10", "0x10"), ("-0", 0), ("007", "007"), ("17", 17), ("-3", -3),
        ("'17'", "17"), ('"true"', "true"), ("true", True), ("false", False), ("True", "True"), ("null", None),
        ("~", None), ("", None), ("9" * 19, "9" * 19),
    ],
)  # fmt: skip
def test_a_plain_scalar_means_what_it_looks_like(text: str, value: Plain) -> None:
    data = read(f"key: {text}\n").data
    assert isinstance(data, dict)
    assert data["key"] == value
    assert type(data["key"]) is type(value)


@given(PLAIN)
def test_what_is_written_as_json_is_read_as_it_was(value: Plain) -> None:
    text = json.dumps({"key": value})
    if depth({"key": value}) > document._DEEPEST:
        with pytest.raises(PolicyInvalid, match="nested deeper"):
            read(text)
    else:
        assert read(text).data == {"key": value}


def depth(value: Plain) -> int:
    """Return how deep lists and mappings are nested."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


def test_values_and_keys_have_positions() -> None:
    found = read("rules:\n  - name: a\n    match: {user: b}\n")
    assert found.position(("rules", 0, "match", "user")) == ("policy.yaml", 3, 19)
    assert found.position(("rules", 0, "match", "user"), at_key=True) == ("policy.yaml", 3, 13)
    assert found.position(("rules", 0, "match", "qos")) == ("policy.yaml", 3, 12)
    assert found.position(("images",), at_key=True) == ("policy.yaml", 1, 1)
    assert read("").position(("x", "y")) == ("policy.yaml", 1, 1)
