"""Check source text, small JSON, and bytes of unknown format.

For unpublished formats the checks find only what a crash typically leaves: an empty file, one of zeroes, one that ends
in a page of zeroes. They cannot find other truncation or changes.

What few formats need is imported in the function that needs it: most files are checked for having been written.
"""

from __future__ import annotations

import os

from warmstart.profiles.entry_files import EntryFiles, EntryInvalid

LARGEST_TEXT = 64 << 20
LARGEST_JSON = 1 << 20
PAGE = 4096


def check_text(files: EntryFiles, name: str) -> None:
    """Require non-empty UTF-8 without NUL bytes. Truncation cannot be found."""
    data = files.read(name, LARGEST_TEXT)
    try:
        data.decode()
    except UnicodeDecodeError as error:
        raise EntryInvalid("text-malformed") from error
    if not data.strip() or b"\0" in data:
        raise EntryInvalid("text-malformed")


def read_json(files: EntryFiles, name: str) -> dict[str, object]:
    """Parse a file that is one JSON object."""
    value = _read(files, name)
    if not isinstance(value, dict):
        raise EntryInvalid("json-malformed")
    return value


def check_json(files: EntryFiles, name: str) -> None:
    """Require a file that is one JSON value of any type."""
    _read(files, name)


def check_timings(files: EntryFiles, name: str) -> None:
    """Require what an autotuner of Triton keeps, or of a tool that took it from there."""
    if not isinstance(read_json(files, name).get("configs_timings"), list):
        raise EntryInvalid("field-malformed")


def check_ptx(files: EntryFiles, name: str, arch: int, kernel: str = "") -> None:
    """Require PTX for `sm_<arch>` with the entry point `kernel`, where one is given. Truncation cannot be found."""
    import re

    check_text(files, name)
    text = files.read(name, LARGEST_TEXT)
    target = re.search(rb"^\.target sm_([0-9]+)[af]?\b", text, re.MULTILINE)
    if not target or int(target[1][:9]) != arch or (f".entry {kernel}(" if kernel else ".entry ").encode() not in text:
        raise EntryInvalid("other-target")


def read_rows(files: EntryFiles, name: str) -> list[tuple[str, ...]]:
    """Parse a file that is one JSON list of lists of strings."""
    rows = _read(files, name)
    if not isinstance(rows, list):
        raise EntryInvalid("json-malformed")
    for row in rows:
        if not isinstance(row, list) or not all(isinstance(cell, str) for cell in row):
            raise EntryInvalid("json-malformed")
    return [tuple(row) for row in rows]


def _read(files: EntryFiles, name: str) -> object:
    import json

    try:
        value: object = json.loads(files.read(name, LARGEST_JSON))
    except (ValueError, RecursionError) as error:
        raise EntryInvalid("json-malformed") from error
    return value


def check_not_empty(files: EntryFiles, name: str) -> None:
    """Require at least one byte."""
    with files.open(name) as (_, size):
        if not size:
            raise EntryInvalid("blob-empty")


def is_empty(files: EntryFiles, name: str) -> bool:
    """Return whether a file has no byte."""
    with files.open(name) as (_, size):
        return not size


def check_written(files: EntryFiles, name: str) -> None:
    """Require that the last page, or all of a smaller file, is not zeroes: those would never have been written."""
    with files.open(name) as (file, size):
        if not size:
            raise EntryInvalid("blob-empty")
        file.seek(max(0, size - PAGE), os.SEEK_SET)
        if not file.read(PAGE).strip(b"\0"):
            raise EntryInvalid("blob-zeroes")


def check_total(files: EntryFiles, limit: int) -> None:
    """Require at most `limit` bytes in all files of the entry together."""
    total = 0
    for name in files.names:
        with files.open(name) as (_, size):
            total += size
    if total > limit:
        raise EntryInvalid("too-large")
