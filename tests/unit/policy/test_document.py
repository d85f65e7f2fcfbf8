"""YAML as plain data with positions: what a scalar means, what is refused and where."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmstart.policy import document
from warmstart.policy.document import Details, Document, Fault, Plain
from warmstart.policy.invalid import PolicyInvalid

TEXTS = st.text("ab: \n-[]{}'\"#&*!|>%@`?,~\\0x\t", max_size=40)
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
    found = Document("policy.yaml")
    found.add_policy("policy.yaml", text)
    return found


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
    """Not YAML 1.1's octal numbers, times and booleans."""
    data = read(f"key: {text}\n").data
    assert isinstance(data, dict)
    assert data["key"] == value
    assert type(data["key"]) is type(value)


@given(PLAIN)
def test_what_is_written_as_json_is_read_as_it_was(value: Plain) -> None:
    """JSON is YAML: quotes make texts, and nothing else is changed."""
    text = json.dumps({"key": value})
    if depth(value) + 1 > document._DEEPEST:
        with pytest.raises(PolicyInvalid, match="nested deeper"):
            read(text)
    else:
        assert read(text).data == {"key": value}


def depth(value: Plain) -> int:
    """Return how deep a value is nested; a scalar is 1."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(depth, inner), default=0)


@given(TEXTS)
def test_any_text_is_data_or_refused_with_a_place(text: str) -> None:
    """Every value has a position inside the text."""
    try:
        found = read(text)
    except PolicyInvalid as error:
        refusal = str(error)
        assert refusal.startswith("policy.yaml:")
        return
    lines = text.count("\n") + 1
    for problem in found.problems:
        assert (problem.path, 1 <= problem.line <= lines) == ("policy.yaml", True)
    for path, line, column in found._values.values():
        assert (path, 1 <= line <= lines + 1, column >= 1) == ("policy.yaml", True, True)


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("a: &x 1\nb: *x\n", "policy.yaml:1:4: not YAML: anchors and aliases are not allowed; write the value out"),
        ("a: !!str 1\n", "policy.yaml:1:4: not YAML: tags are not allowed"),
        ("a: {" * 9 + "}" * 9, "nested deeper than 8"),
        ("a: [1\n", "not YAML: "),
        ("a: *\n", "policy.yaml:1:5: not YAML: a value cannot begin with * unless it is in quotes: '*'"),
        ("a: [*, b]\n", "not YAML: a value cannot begin with * unless it is in quotes: '*'"),
        ("a: @b\n", "policy.yaml:1:4: not YAML: a value cannot begin with @ unless it is in quotes"),
        ("a: 1\nb: \x07\n", "policy.yaml:2:4: not YAML: character 0x7 is not allowed"),
        ('a: "\\UFFFFFFFF"\n', "not YAML: "),
        ("a: 1\n---\nb: 1\n", "not YAML: "),
    ],
)
def test_what_is_refused_has_a_place(text: str, refusal: str) -> None:
    """Line and column count from 1."""
    with pytest.raises(PolicyInvalid) as caught:
        read(text)
    assert refusal in str(caught.value)


def test_values_and_keys_have_positions() -> None:
    """What is not written has that of what is around it."""
    found = read("rules:\n  - name: a\n    match: {user: b}\n")
    assert found.position(("rules", 0, "match", "user")) == ("policy.yaml", 3, 19)
    assert found.position(("rules", 0, "match", "user"), at_key=True) == ("policy.yaml", 3, 13)
    assert found.position(("rules", 0, "match", "qos")) == ("policy.yaml", 3, 12)
    assert found.position(("images",), at_key=True) == ("policy.yaml", 1, 1)
    assert read("").position(("x", "y")) == ("policy.yaml", 1, 1)


def test_a_key_stands_once_and_is_a_name() -> None:
    """Otherwise the last one would win, and nobody would know."""
    problems = read("a: 1\nb: 2\na: 3\n[c]: 4\n").problems
    assert [str(problem) for problem in problems] == [
        "policy.yaml:3:1: duplicate key 'a'",
        "policy.yaml:4:1: a key must be a plain name",
    ]


def test_a_file_of_conf_d_adds_rules() -> None:
    """Behind those that are there, with positions in their own file; it may hold nothing else."""
    found = read("rules: [{name: a}]\n")
    found.add_rules("conf.d/x.yaml", "# only a comment\n")
    found.add_rules("conf.d/y.yaml", "rules:\n  - name: b\n  - name: c\n")
    assert found.data == {"rules": [{"name": "a"}, {"name": "b"}, {"name": "c"}]}
    assert found.position(("rules", 2, "name")) == ("conf.d/y.yaml", 3, 11)
    for text in ("- a\n", "images: {}\n", "rules: a\n"):
        found.add_rules("conf.d/z.yaml", text)
    assert [(str(problem.path), problem.problem.split(";")[0]) for problem in found.problems] == [
        ("conf.d/z.yaml", "expected a mapping with the key rules"),
        ("conf.d/z.yaml", "'images': a file in conf.d may hold only rules"),
        ("conf.d/z.yaml", "rules: expected a list"),
    ]
    broken = read("rules: x\n")
    broken.add_rules("conf.d/y.yaml", "rules: [{name: b}]\n")
    assert broken.data == {"rules": "x"}  # the model reports that one


@pytest.mark.parametrize(
    ("loc", "text"),
    [((), ""), (("rules", 0, "match", "user"), "rules[0].match.user"), (("env", "A B"), "env.'A B'"), ((3,), "[3]")],
)
def test_a_loc_is_said_as_it_is_written(loc: tuple[str | int, ...], text: str) -> None:
    """Odd names are quoted."""
    assert document.dotted(loc) == text


def test_a_wrong_word_has_advice() -> None:
    """The nearest one, or all that there are."""
    assert document.nearest("imags", ["images", "rules"]) == "did you mean images?"
    assert document.nearest("xyz", ["images", "rules"]) == "allowed: images, rules"


@pytest.mark.parametrize(
    ("kind", "given", "sentence"),
    [
        ("string_type", True, "expected a text, got true; put it in quotes: 'true'"),
        ("string_type", None, "expected a text, got nothing; give it a value or leave the key out"),
        ("int_type", {}, "expected a whole number, got a mapping"),
        ("list_type", "x", "expected a list, got 'x'"),
        ("model_type", [], "expected a mapping, got a list"),
        ("literal_error", "z", "expected 'x' or 'y', got 'z'"),
        ("greater_than_equal", 0, "0 is too low; at least 1"),
        ("missing", {}, "missing"),
        ("too_short", [], "is empty; name at least one, or leave the key out"),
        ("value_error", 1, "no"),
        ("another", 1, "what pydantic says"),
    ],
)
def test_what_the_model_says_becomes_a_sentence(kind: str, given: object, sentence: str) -> None:
    """Of an administrator's words, not of pydantic's."""
    context: dict[str, object] = {"expected": "'x' or 'y'", "ge": 1, "error": ValueError("no")}
    error: Details = {"type": kind, "loc": ("a", 0), "msg": "what pydantic says", "input": given, "ctx": context}
    assert document.fault(error, lambda _loc: []) == Fault(("a", 0), f"a[0]: {sentence}")


def test_a_key_is_wrong_where_it_stands() -> None:
    """One that is not known has advice; one that is no name of a variable is said with what is around it."""
    unknown: Details = {"type": "extra_forbidden", "loc": ("imags",), "msg": "", "input": 1}
    found = document.fault(unknown, lambda _loc: ["images", "rules"])
    assert found == Fault(("imags",), "imags: unknown key; did you mean images?", at_key=True)
    name: Details = {"type": "other", "loc": ("env", "1A", "[key]"), "msg": "no name", "input": "1A"}
    assert document.fault(name, lambda _loc: []) == Fault(("env", "1A"), "env: no name", at_key=True)
    whole: Details = {"type": "missing", "loc": (), "msg": "", "input": None}
    assert document.fault(whole, lambda _loc: []).problem == "the policy: missing"
