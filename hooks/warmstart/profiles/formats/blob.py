"""What can be proved of bytes whose format nobody has published: that they are there, and not what a crash leaves.

Catches: an empty file, one of zeroes alone, one that ends in a page of zeroes (what a file system leaves of a write
that it had not finished). Can't catch: a file cut short, or changed, anywhere else.
"""

from __future__ import annotations

import os

from warmstart.profiles.entry_files import EntryFiles, EntryInvalid

PAGE = 4096


def check_not_empty(files: EntryFiles, name: str) -> None:
    """Require at least one byte."""
    with files.open(name) as (_, size):
        if not size:
            raise EntryInvalid("blob-empty")


def check_written(files: EntryFiles, name: str) -> None:
    """Require bytes up to the end: a last page (or all of a smaller file) of zeroes was never written."""
    with files.open(name) as (file, size):
        if not size:
            raise EntryInvalid("blob-empty")
        file.seek(max(0, size - PAGE), os.SEEK_SET)
        if not file.read(PAGE).strip(b"\0"):
            raise EntryInvalid("blob-zeroes")


def check_total(files: EntryFiles, limit: int) -> None:
    """Require that the entry's files have at most `limit` bytes together."""
    total = 0
    for name in files.names:
        with files.open(name) as (_, size):
            total += size
    if total > limit:
        raise EntryInvalid("too-large")
