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


def check_json(files: EntryFiles, name: str) -> None:
    """Require one JSON object up to the end of the file."""
    try:
        value = json.loads(files.read(name, LARGEST_JSON))
    except (ValueError, RecursionError) as error:
        raise EntryInvalid("json-malformed") from error
    if not isinstance(value, dict):
        raise EntryInvalid("json-malformed")
