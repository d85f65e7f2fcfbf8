"""Types of values that an admin writes: what each one takes, and its JSON Schema. Never on a warm path."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, NamedTuple

from warmstart.host.identity import Identity
from warmstart.host.wire import Json
from warmstart.policy.document import Fault, Loc, dotted

FindUser = Callable[[str], "Identity | None"]


class At(NamedTuple):
    """Where a value stands, and the faults that were found so far."""

    loc: Loc
    faults: list[Fault]
    find_user: FindUser

    def below(self, part: str | int) -> At:
        """Return the place of a mapping's value, or of a list's item."""
        return self._replace(loc=(*self.loc, part))

    def fault(self, problem: str, at_key: bool = False) -> None:
        """Add a fault of this value."""
        self.faults.append(Fault(self.loc, f"{dotted(self.loc) or 'the policy'}: {problem}", at_key))

    def expected(self, what: str, value: Json) -> None:
        """Add the fault that this value is of another kind."""
        got = "a mapping" if isinstance(value, dict) else "a list" if isinstance(value, list) else ascii(value)
        if value is None:
            got = "nothing; give it a value or leave the key out"
        elif what == "a text" and isinstance(value, int):
            got = str(value).lower() if isinstance(value, bool) else got
            got = f"{got}; put it in quotes: '{got}'"
        self.fault(f"expected {what}, got {got}")


class Type(NamedTuple):
    """A type: its JSON Schema, whose `title` is its word in docs/reference/policy.md, and its check.

    The check returns what hooks read of a value, or adds faults; then nobody looks at the result.
    """

    schema: Json
    check: Callable[[Json, At], Any]

    def __or__(self, _none: None) -> Type:
        """Return the type of which null is a value, too."""
        schema = {"anyOf": [self.schema, {"type": "null"}]}
        return Type(schema, lambda value, at: None if value is None else self.check(value, at))


def text(word: str, pattern: str, what: str, then: Callable[[str, At], Any] | None = None) -> Type:
    """Return the type of texts that match `pattern` as a whole; `what` completes "… is not …" in the fault."""
    compiled = re.compile(pattern)

    def check(value: Json, at: At) -> Any:  # noqa: ANN401 - what `then` makes of it
        if not isinstance(value, str):
            return at.expected("a text", value)
        if not compiled.fullmatch(value):
            return at.fault(f"{value!a} is not {what}")
        return then(value, at) if then else value

    return Type({"type": "string", "title": word, "pattern": f"^{pattern}$"}, check)


def quantity(word: str, pattern: str, parse: Callable[[object], object]) -> Type:
    """Return the type of texts that `parse` takes, which raises `ValueError` for others."""

    def check(value: Json, at: At) -> Any:  # noqa: ANN401 - a number
        try:
            return parse(value)
        except ValueError as error:
            return at.fault(str(error))

    return Type({"type": "string", "title": word, "pattern": f"^{pattern}$"}, check)


def number(low: int) -> Type:
    """Return the type of whole numbers from `low`."""

    def check(value: Json, at: At) -> Any:  # noqa: ANN401 - a number
        if type(value) is not int:
            return at.expected("a whole number", value)
        return value if value >= low else at.fault(f"{value} is too low; at least {low}")

    return Type({"type": "integer", "minimum": low}, check)


def boolean() -> Type:
    """Return the type of true and false."""
    return Type(
        {"type": "boolean"}, lambda value, at: value if isinstance(value, bool) else at.expected("true or false", value)
    )


def literal(*values: str | int) -> Type:
    """Return the type of these values."""
    *others, last = map(repr, values)
    what = f"{', '.join(others)} or {last}" if others else last
    schema = {"enum": list(values), "type": "string"} if others else {"const": values[0], "type": "integer"}
    known = [(type(value), value) for value in values]  # 1 is not true
    return Type(schema, lambda value, at: value if (type(value), value) in known else at.expected(what, value))


def _count(value: Json, at: At, low: int, most: int | None) -> None:
    if len(value) < low:
        at.fault("is empty; name at least one, or leave the key out")
    elif most is not None and len(value) > most:
        at.fault(f"has {len(value)} items; at most {most}")


def _limits(what: str, low: int, most: int | None) -> Json:
    return {**({f"min{what}": low} if low else {}), **({f"max{what}": most} if most else {})}


def listed(item: Type, low: int = 0, most: int | None = None, made: Callable[..., Json] = tuple) -> Type:
    """Return the type of lists, which are tuples then, or what else is `made` of them."""

    def check(value: Json, at: At) -> Any:  # noqa: ANN401 - a tuple
        if not isinstance(value, list):
            return at.expected("a list", value)
        before = len(at.faults)
        _count(value, at, low, most)
        found = [item.check(one, at.below(number)) for number, one in enumerate(value)]
        return made(found) if len(at.faults) == before else None

    return Type({"type": "array", "items": item.schema, **_limits("Items", low, most)}, check)


def mapping(key: Type, item: Type, low: int = 0, most: int | None = None) -> Type:
    """Return the type of mappings whose keys an admin chooses."""

    def check(value: Json, at: At) -> Any:  # noqa: ANN401 - a mapping
        if not isinstance(value, dict):
            return at.expected("a mapping", value)
        before = len(at.faults)
        _count(value, at, low, most)
        for name in value:
            key.check(name, at.below(name))
        at.faults[before:] = [fault._replace(at_key=fault.loc != at.loc) for fault in at.faults[before:]]
        found = {name: item.check(one, at.below(name)) for name, one in value.items()}
        return found if len(at.faults) == before else None

    properties = {key.schema["pattern"]: item.schema}
    return Type({"type": "object", "patternProperties": properties, **_limits("Properties", low, most)}, check)


def one_or_more(item: Type, word: str, made: Callable[..., Json] = tuple) -> Type:
    """Return the type of lists that may be written as a single text."""
    items = listed(item, 1, None, made)
    texts = [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]
    as_list = lambda value, at: items.check([value] if isinstance(value, str) else value, at)  # noqa: E731
    return Type({"title": word, "anyOf": texts}, as_list)


class Generic:
    """What `tuple[X, ...]` and its like stand for: a function that makes a type of types."""

    def __init__(self, make: Callable[..., Type]) -> None:
        self._make = make

    def __getitem__(self, items: Any) -> Type:  # noqa: ANN401 - types, values of a `Literal`, or an ellipsis
        given = items if isinstance(items, tuple) and not isinstance(items, Type) else (items,)
        return self._make(*(item for item in given if item is not ...))
