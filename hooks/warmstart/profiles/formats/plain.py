"""Source text and small JSON."""

from __future__ import annotations

import json

from warmstart.profiles.entry_files import EntryFiles, EntryInvalid

LARGEST_TEXT = 64 << 20
LARGEST_JSON = 1 << 20


def check_text(files: EntryFiles, name: str) -> None:
    """Require non-empty UTF-8 without NUL bytes; what is missing at its end can't be seen."""
    data = files.read(name, LARGEST_TEXT)
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise EntryInvalid("text-malformed") from error
    if not data.strip() or b"\0" in data:
        raise EntryInvalid("text-malformed")


def read_json(files: EntryFiles, name: str) -> dict[str, object]:
    """Return one JSON object that ends where the file does."""
    value = _read(files, name)
    if not isinstance(value, dict):
        raise EntryInvalid("json-malformed")
    return value


def check_json(files: EntryFiles, name: str) -> None:
    """Require one JSON value of any kind that ends where the file does."""
    _read(files, name)


def read_rows(files: EntryFiles, name: str) -> list[tuple[str, ...]]:
    """Return one JSON list of lists of strings."""
    rows = _read(files, name)
    if not isinstance(rows, list):
        raise EntryInvalid("json-malformed")
    for row in rows:
        if not isinstance(row, list) or not all(isinstance(cell, str) for cell in row):
            raise EntryInvalid("json-malformed")
    return [tuple(row) for row in rows]


def _read(files: EntryFiles, name: str) -> object:
    try:
        value: object = json.loads(files.read(name, LARGEST_JSON))
    except (ValueError, RecursionError) as error:
        raise EntryInvalid("json-malformed") from error
    return value
