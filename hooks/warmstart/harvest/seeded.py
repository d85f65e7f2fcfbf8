"""What a job was seeded with, to find what it changed: entries that it rewrote or removed.

An entry counts as changed if its content differs from that of its bundle. Names and times only tell which entries to
look at: an overlay also copies up files that were merely touched.
"""

from __future__ import annotations

import errno

from warmstart.caches.store.layout import Entries, File
from warmstart.lean import Callable, Collection, Container, Iterable, Iterator, Sequence
from warmstart.run.state import SeededBundle
from warmstart.seed.layers import given


class SeededEntries:
    """The seeded entries of a profile that its job may have changed; reads lists of files only when asked."""

    def __init__(
        self, bundles: Sequence[SeededBundle], read: Callable[[SeededBundle], Entries], hidden: Sequence[str] = ()
    ) -> None:
        """`read` returns the entries of a bundle, none if it is gone; `hidden` as in `Seeded`."""
        self._hidden = hidden
        self._bundles = bundles
        self._named: dict[str, SeededBundle] | None = None
        self._read = read
        self._entries: dict[str, Entries] = {}

    @property
    def names(self) -> Collection[str]:
        """Names of the entries. Raises `OSError` if nobody knows those of a bundle any more."""
        return self._bundle_of.keys()

    def __contains__(self, entry: object) -> bool:
        return entry in self._bundle_of

    @property
    def _bundle_of(self) -> dict[str, SeededBundle]:
        if self._named is None:  # a job that leaves nothing need not wait for it
            self._named = {entry: bundle for bundle, names in self._names() for entry in names}
        return self._named

    def _names(self) -> Iterator[tuple[SeededBundle, Collection[str]]]:
        """Yield the bundles with the entries that the job was given of each, which the prolog need not have read."""
        unnamed = [bundle for bundle in self._bundles if bundle.number]
        for bundle in unnamed:
            if not self._of(bundle):  # then what the job changed would look like what it made
                raise OSError(errno.ENOENT, f"the bundle {bundle.sha256}, which names what it was seeded with, is gone")
        yield from zip(unnamed, given([self._of(bundle) for bundle in unnamed], self._hidden), strict=True)
        for bundle in self._bundles:
            if not bundle.number:
                yield bundle, bundle.entries

    def files(self, entry: str) -> dict[str, File]:
        """Return the files that the job was given; none if its bundle is gone from both node and store."""
        return self._of(self._bundle_of[entry]).get(entry, {})

    def _of(self, bundle: SeededBundle) -> Entries:
        if bundle.sha256 not in self._entries:
            self._entries[bundle.sha256] = self._read(bundle)
        return self._entries[bundle.sha256]

    def source(self, entry: str) -> SeededBundle:
        """Return the bundle that an entry was given from."""
        return self._bundle_of[entry]

    def is_changed(self, entry: str, files: dict[str, File]) -> bool:
        """Return whether these files of the entry differ from those that the job was given."""
        return _content(files) != _content(self.files(entry))

    def has_lost(self, entry: str, files: dict[str, File]) -> bool:
        """Return whether these files of the entry are but some of those that the job was given, or none of them."""
        return _content(files) < _content(self.files(entry))

    def given(self) -> set[str]:
        """Return the names of all that the prolog gave the job, as `names`."""
        return {entry for _, names in self._names() for entry in names}

    def with_other_times(self, present: dict[str, dict[str, tuple[int, int]]]) -> list[str]:
        """Return the entries that look changed in a whole tree: entry → path → size and mtime in nanoseconds."""
        given = {entry: self.files(entry) for entry in self.names}
        return [
            entry
            for entry, files in given.items()
            if files and present.get(entry, {}) != {path: (file.size, file.mtime_ns) for path, file in files.items()}
        ]

    def below(self, touched: set[str], entry_of: Callable[[str], str | None]) -> list[str]:
        """Return the entries that look changed in an overlay, by the names that its upper layer has."""
        if not touched:
            return []
        named = {entry_of(path) for path in touched}
        named.update(folder for path in touched for folder in _with_parents(path))
        return [entry for entry in self.names if entry in named or not touched.isdisjoint(_with_parents(entry))]


class KnownEntries:
    """The entries to skip: those that the job was seeded with, those in the store, and what other nodes handed in.

    The store is asked at the first entry that was not seeded. Its answer takes longer the more it has, and the epilog
    of a warm job does not wait for it. Seeded entries that the job changed are collected all the same.
    """

    def __init__(self, seeded: Container[str], ask: Callable[[], Iterable[str]]) -> None:
        """`ask` returns the entries in the store."""
        self._seeded = seeded
        self._ask = ask
        self._stored: frozenset[str] | None = None

    @property
    def was_asked(self) -> bool:
        """Whether there was an entry that was not seeded."""
        return self._stored is not None

    def __contains__(self, entry: object) -> bool:
        if entry in self._seeded:
            return True
        if self._stored is None:
            self._stored = frozenset(self._ask())
        return entry in self._stored


def _content(files: dict[str, File]) -> set[tuple[str, int, str]]:
    return {(path, file.size, file.sha256) for path, file in files.items()}


def _with_parents(path: str) -> Iterator[str]:
    """Yield a path and its parent directories."""
    while path:
        yield path
        path = path.rpartition("/")[0]


NOTHING_SEEDED = SeededEntries([], lambda _: {})
