"""The staged files of one entry, and the reasons for which a validator may reject it.

The stage holds copies made by root (docs/architecture.md, rule 3); their content is untrusted. Files are opened
relative to the stage's descriptor, one component at a time, without following links.
"""

from __future__ import annotations

import errno
import os

from warmstart.host.files import closing, open_regular, opened_dir
from warmstart.lean import TYPE_CHECKING, Iterable, Iterator, Sequence, contextmanager

if TYPE_CHECKING:
    from typing import BinaryIO

# All reasons for a rejection; docs/reference/profiles.md has the same list. They are fixed, so no text from a job gets
# into the audit.
REASONS = {
    "incomplete": "a needed file is missing",
    "unexpected-file": "a file that is not the entry's",
    "not-a-file": "a file is missing or is not a regular one",
    "too-large": "larger than the limit for its format, or for one entry",
    "not-written": "empty, or its last page is all zeroes: it was not written to its end",
    "text-malformed": "empty, or not UTF-8 text",
    "json-malformed": "not a JSON value of the expected form",
    "pickle-malformed": "not as many whole pickles as expected, or followed by other bytes",
    "compressed-malformed": "compressed data that is damaged, cut or followed by other bytes",
    "elf-malformed": "not a whole 64-bit ELF file of the expected type",
    "hash-differs": "the name is not the hash of the content",
    "two-writers": "the files do not belong together: two processes wrote the entry",
    "not-loadable": "a function that no later process can load",
    "made-elsewhere": "it names its run's own path, because its job did not see the cache at the constant path",
    "unreadable": "a staged file could not be read",
    "too-slow": "validation took longer than files of that size need",
    "validator-failed": "the validator itself failed on this entry",
}


class EntryInvalid(Exception):
    """An entry is incomplete or malformed, and is not published."""

    def __init__(self, reason: str) -> None:
        assert reason in REASONS, reason
        super().__init__(reason)
        self.reason = reason


class EntryFiles:
    """The files of one entry, opened on request."""

    def __init__(self, stage: int, entry: str, names: Iterable[str], below: str = "") -> None:
        """Take the entry's name and its files' names in the stage; those here are relative to its directory `below`.

        Raises `EntryInvalid` and `OSError`.
        """
        self._stage, self._below = stage, below
        self.entry = entry.removeprefix(below)
        self.names = tuple(sorted(name.removeprefix(below) for name in names))
        self.size = sum(self.status(name).st_size for name in self.names)  # bytes

    @contextmanager
    def open(self, name: str) -> Iterator[tuple[BinaryIO, int]]:
        """Open one of `names`; yield the file and its size in bytes. Raises `EntryInvalid` and `OSError`."""
        with os.fdopen(self._descriptor(name), "rb") as file:
            yield file, os.fstat(file.fileno()).st_size

    def status(self, name: str) -> os.stat_result:
        """Return the status of one of `names`; the stage preserves mtimes. Raises `EntryInvalid` and `OSError`."""
        with closing(self._descriptor(name)) as fd:
            return os.fstat(fd)

    def read(self, name: str, limit: int) -> bytes:
        """Return the content of one file. Raises `EntryInvalid` ("too-large") above `limit` bytes."""
        with self.open(name) as (file, size):
            if size > limit:
                raise EntryInvalid("too-large")
            return file.read()

    def _descriptor(self, name: str) -> int:
        parts = (self._below + name).split("/")
        if not all(parts) or {".", ".."} & {*parts}:
            raise EntryInvalid("unexpected-file")
        try:
            return _open_below(self._stage, parts)
        except OSError as error:
            missing = error.errno in {errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.EINVAL, errno.ENXIO}
            raise EntryInvalid("not-a-file" if missing else "unreadable") from error


def _open_below(at: int, parts: Sequence[str]) -> int:
    if len(parts) == 1:
        return open_regular(parts[0], at)
    with opened_dir(parts[0], at) as inside:
        return _open_below(inside, parts[1:])
