"""Check and rebuild typed values that arrive as JSON from a process with another identity.

What a less trusted process sends is parsed, never assumed: the receiver names the type it expects and gets a value of
exactly that type, or `WireMismatch`. Types that can cross: `str`, `int`, `float`, `bool`, `None`, `Literal`,
`NamedTuple` classes (as JSON arrays), `list`, `tuple`, `Sequence`, `dict` with string keys, and unions of these.

Hot path: every worker call decodes one answer.
"""

from __future__ import annotations

import sys

from warmstart.lean import TYPE_CHECKING, Literal, Sequence, loads

if TYPE_CHECKING:
    from typing import Any, TypeVar

    T = TypeVar("T")
    Json = Any  # what `loads` returns
else:
    Json = object

_SCALARS = frozenset({str, int, bool, type(None)})
_UNION = type(int | None)
_LITERAL: Any = Literal
_fields: dict[type, dict[str, Any]] = {}  # NamedTuple class → its fields' types


class WireMismatch(ValueError):
    """The value does not have the type that the receiver expects."""


def parse(text: str | bytes) -> Json:
    """Decode JSON; `ValueError` for anything else, also for what is nested too deep."""
    try:
        return loads(text)
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def result_of(function: Any) -> Any:  # noqa: ANN401 - any function
    """Return the type of a function's result."""
    return _evaluated({"return": function.__annotations__["return"]}, function.__globals__)["return"]


def _evaluated(annotations: dict[str, Any], names: dict[str, Any]) -> dict[str, Any]:
    """Return the types that a module's own annotations stand for, as `typing.get_type_hints` does."""
    types = {}
    for name, kind in annotations.items():
        text = getattr(kind, "__forward_arg__", kind)  # as typing.NamedTuple keeps a text
        # The texts are our own source, never data; there are types instead in a module without the future import.
        types[name] = eval(text, names) if type(text) is str else kind  # noqa: S307
    return {name: type(None) if kind is None else kind for name, kind in types.items()}


def decode(expected: Any, value: Json) -> Any:  # noqa: ANN401 - the value has the type `expected`
    """Return `value` as an instance of the type `expected`; `WireMismatch` if it is not one.

    A `float` accepts a whole number. Raises `TypeError` for a type that cannot cross, which is the caller's bug.
    """
    if expected in _SCALARS:
        if type(value) is not expected:
            raise WireMismatch(f"expected {expected.__name__}, got {type(value).__name__}")
        return value
    if expected is float:
        if type(value) not in {int, float}:
            raise WireMismatch(f"expected float, got {type(value).__name__}")
        try:
            return float(value)
        except OverflowError as error:
            raise WireMismatch("expected float, got a larger number") from error
    if isinstance(expected, type) and hasattr(expected, "_fields"):
        return _named_tuple(expected, value)
    if type(expected) is _UNION:
        return _union(_arguments(expected), value)
    if isinstance(expected, _LITERAL):
        if value not in expected.values:
            raise WireMismatch(f"expected one of {expected.values}, got {value!r:.80}")
        return value
    return _collection(expected, value)


def from_object(expected: type[T], value: Json) -> T:
    """Return a `NamedTuple` from a JSON object whose keys are its fields; `WireMismatch` if it is not one.

    Fields with a default may be missing. Others are ignored: a newer release may have written them
    (docs/store-format.md, Releases).
    """
    if type(value) is not dict:
        raise WireMismatch(f"expected an object, got {type(value).__name__}")
    try:
        fields: Any = expected(**known_fields(expected, value))
    except TypeError as error:  # a field is missing
        raise WireMismatch(str(error)) from error
    result: T = decode(expected, list(fields))
    return result


def known_fields(expected: Any, value: dict[str, Json]) -> dict[str, Json]:  # noqa: ANN401 - a NamedTuple class
    """Return the items of a JSON object that are fields of a `NamedTuple`."""
    return {name: field for name, field in value.items() if name in expected._fields}


def _named_tuple(expected: Any, value: Json) -> Any:  # noqa: ANN401
    fields = _fields.get(expected)
    if fields is None:
        # A subclass that adds methods inherits them. Python 3.14 makes `__annotations__` when it is asked for.
        declaring = next(cls for cls in expected.__mro__ if "_fields" in cls.__dict__)
        fields = _evaluated(declaring.__annotations__, sys.modules[declaring.__module__].__dict__)
        _fields[expected] = fields
    if type(value) is not list or len(value) != len(fields):
        raise WireMismatch(f"expected the {len(fields)} fields of {expected.__name__}")
    return expected(*map(decode, fields.values(), value))


def _union(members: tuple[Any, ...], value: Json) -> Any:  # noqa: ANN401
    for member in members:
        try:
            return decode(member, value)
        except WireMismatch:
            continue
    raise WireMismatch(f"expected one of {members}, got {type(value).__name__}")


def _collection(expected: Any, value: Json) -> Any:  # noqa: ANN401
    origin, items = getattr(expected, "__origin__", None), _arguments(expected)
    if origin is dict and items[0] is str:
        if type(value) is not dict:
            raise WireMismatch(f"expected an object, got {type(value).__name__}")
        return dict(zip(value, _all(items[1], list(value.values())), strict=True))
    if origin not in {list, tuple, Sequence}:
        raise TypeError(f"{expected!r} cannot be sent between processes")
    if type(value) is not list:
        raise WireMismatch(f"expected an array, got {type(value).__name__}")
    if origin is not tuple:
        return _all(items[0], value)
    if items[-1] is Ellipsis:
        return tuple(_all(items[0], value))
    if len(value) != len(items):
        raise WireMismatch(f"expected {len(items)} items, got {len(value)}")
    return tuple(map(decode, items, value))


def _arguments(expected: Any) -> Any:  # noqa: ANN401
    """Return the types in the brackets or between the bars of a type."""
    return getattr(expected, "__args__", ())


def _all(expected: Any, values: list[Json]) -> list[Any]:  # noqa: ANN401
    if expected in _SCALARS and set(map(type, values)) <= {expected}:  # fast path for long lists of names
        return values
    return [decode(expected, value) for value in values]
