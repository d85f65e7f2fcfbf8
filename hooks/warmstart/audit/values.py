"""Read values of audit lines by type. A value that is missing or of another type is empty: logs outlive releases."""

from __future__ import annotations

import math
from collections.abc import Mapping

_NOTHING: dict[str, object] = {}


def text(line: Mapping[str, object], key: str) -> str:
    """Return a string, "" for anything else."""
    value = line.get(key)
    return value if isinstance(value, str) else ""


def number(line: Mapping[str, object], key: str) -> float:
    """Return a finite number that is not negative, 0.0 for anything else."""
    value = line.get(key)
    fits = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    return float(value) if fits else 0.0  # type: ignore[arg-type]  # `fits` narrows nothing


def texts(line: Mapping[str, object], key: str) -> list[str]:
    """Return the strings of a list."""
    value = line.get(key)
    return [item for item in value if isinstance(item, str)] if isinstance(value, list) else []


def mapping(line: Mapping[str, object], key: str) -> dict[str, object]:
    """Return an object."""
    value = line.get(key)
    return value if isinstance(value, dict) else _NOTHING


def words(line: Mapping[str, object], key: str) -> dict[str, str]:
    """Return the strings of an object."""
    return {name: value for name, value in mapping(line, key).items() if isinstance(value, str)}


def counts(line: Mapping[str, object], key: str) -> dict[str, int]:
    """Return the numbers of an object, as integers."""
    numbers = mapping(line, key)
    return {name: count for name in numbers if (count := int(number(numbers, name)))}


def as_objects(value: object) -> object:
    """Return named tuples as objects, at any depth."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {name: as_objects(item) for name, item in value._asdict().items()}
    return [as_objects(item) for item in value] if isinstance(value, tuple) else value
