"""What pydantic found, in words that tell an admin what to write instead. Pure; knows no file.

A fault's `loc` is the way to its value: `("rules", 0, "match", "user")`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from typing import NamedTuple, TypedDict

Loc = tuple[str | int, ...]

EXPECTED = {
    "string_type": "a text",
    "int_type": "a whole number",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
}

FIXED = {
    "missing": "missing",
    "too_short": "is empty; name at least one, or leave the key out",
}


class _Details(TypedDict):
    type: str
    loc: tuple[str | int, ...]
    msg: str
    input: object


class Details(_Details, total=False):
    """One item of pydantic's `ValidationError.errors()`."""

    ctx: dict[str, object]


class Fault(NamedTuple):
    """One problem before it has a place in a file; `at_key` points at the key, not at its value."""

    loc: Loc
    problem: str
    at_key: bool = False


def dotted(loc: Sequence[str | int]) -> str:
    """Return `rules[0].match.user` for a loc."""
    text = ""
    for part in loc:
        if isinstance(part, int):
            text += f"[{part}]"
        else:
            text += ("." if text else "") + (part if part.isidentifier() else ascii(part))
    return text


def nearest(word: str, known: Sequence[str]) -> str:
    """Return `did you mean X?`, or what is known when nothing is near."""
    close = get_close_matches(word, known, n=1)
    return f"did you mean {close[0]}?" if close else f"known here: {', '.join(known)}"


def fault(error: Details, known_keys: Callable[[Loc], Sequence[str]]) -> Fault:
    """Return the fault for one item of pydantic's `ValidationError.errors()`."""
    loc: Loc = tuple(error["loc"])
    if loc and loc[-1] == "[key]":
        return Fault(loc[:-1], f"{dotted(loc[:-2])}: {_problem(error)}", at_key=True)
    if error["type"] == "extra_forbidden":
        advice = nearest(str(loc[-1]), known_keys(loc[:-1]))
        return Fault(loc, f"{dotted(loc)}: unknown key; {advice}", at_key=True)
    return Fault(loc, f"{dotted(loc) or 'the policy'}: {_problem(error)}")


def _problem(error: Details) -> str:
    kind, context = error["type"], error.get("ctx", {})
    if kind in EXPECTED:
        return f"expected {EXPECTED[kind]}, got {_shown(error['input'], kind)}"
    if kind == "literal_error":
        return f"expected {context['expected']}, got {_shown(error['input'], kind)}"
    if kind == "greater_than_equal":
        return f"{error['input']!a} is too low; at least {context['ge']}"
    if kind == "value_error":
        return str(context["error"])
    return FIXED.get(kind, str(error["msg"]))


def _shown(value: object, kind: str) -> str:
    if value is None:
        return "nothing; give it a value or leave the key out"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    if kind == "string_type":
        written = str(value).lower() if isinstance(value, bool) else str(value)
        return f"{written}; put it in quotes: '{written}'"
    return ascii(value)
