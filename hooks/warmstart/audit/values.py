"""Read values of audit lines by type. A value that is missing or of another type is empty: logs outlive releases."""

from __future__ import annotations

import math
from collections.abc import Mapping

from warmstart.audit.line import CUT


def text(line: Mapping[str, object], key: str) -> str:
    """Return a string, "" for anything else."""
    value = line.get(key)
    return value if isinstance(value, str) else ""


def number(line: Mapping[str, object], key: str) -> float:
    """Return a finite number that is not negative, 0.0 for anything else."""
    value = line.get(key)
    fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    return float(value) if fits else 0.0  # type: ignore[arg-type]  # `fits` narrows nothing


def count(line: Mapping[str, object], key: str) -> int:
    """Return a number as an integer."""
    return int(number(line, key))


def seconds(line: Mapping[str, object], key: str) -> float:
    """Return a time that is given in milliseconds."""
    return number(line, key) / 1000


def texts(line: Mapping[str, object], key: str) -> tuple[str, ...]:
    """Return the strings of a list."""
    value = line.get(key)
    return tuple(item for item in value if isinstance(item, str)) if isinstance(value, list) else ()


def mappings(line: Mapping[str, object], key: str) -> list[dict[str, object]]:
    """Return the objects of a list, without the one that says how many were cut."""
    value = line.get(key)
    items = value if isinstance(value, list) else []
    return [item for item in items if isinstance(item, dict) and item.keys() != {CUT}]


def mapping(line: Mapping[str, object], key: str) -> dict[str, object]:
    """Return an object, without the key that says how many were cut."""
    value = line.get(key)
    return {name: item for name, item in value.items() if name != CUT} if isinstance(value, dict) else {}


def counts(line: Mapping[str, object], key: str) -> dict[str, int]:
    """Return the numbers of an object, as integers."""
    numbers = mapping(line, key)
    return {name: times for name in numbers if (times := count(numbers, name))}
