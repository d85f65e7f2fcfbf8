"""What a harvest need not bring: what the job was given and has not changed, and what the store has already.

An entry counts as changed if its content differs from that of its bundle. Names and times only tell which entries to
look at: an overlay also copies up files that were merely touched.

Both are asked for when somebody asks: a job that leaves nothing need not wait for either.
"""

from __future__ import annotations

import errno

from warmstart.caches.store.layout import Entries, File
from warmstart.lean import Callable, Collection, Iterable, Iterator
from warmstart.run.state import Seeded, SeededBundle
from warmstart.seed.layers import given, parents


class Known:
    """The entries of one profile that are known, by name."""

    def __init__(
        self, seeded: Seeded, read: Callable[[SeededBundle], Entries], ask: Callable[[], Iterable[str]]
    ) -> None:
        """`read` returns the entries of a bundle, none if it is gone; `ask` returns those that the store has."""
        self._seeded = seeded
        self._read = read
        self._ask = ask
        self._sources: dict[str, SeededBundle] | None = None
        self._bundles: dict[str, Entries] = {}  # by hash
        self._stored: frozenset[str] | None = None

    @property
    def sources(self) -> dict[str, SeededBundle]:
        """The entries that the job was given, each with its bundle. `OSError` if nobody knows one's names any more."""
        if self._sources is None:
            self._sources = {entry: bundle for bundle, names in self._named() for entry in names}
        return self._sources

    def _named(self) -> Iterator[tuple[SeededBundle, Collection[str]]]:
        """Yield the bundles with the entries that the job was given of each, which the prolog need not have read."""
        unnamed = [bundle for bundle in self._seeded.bundles if bundle.number]
        for bundle in unnamed:
            if not self._entries(bundle):  # then what the job changed would look like what it made
                raise OSError(errno.ENOENT, f"the bundle {bundle.sha256}, which names what it was seeded with, is gone")
        yield from zip(unnamed, given([self._entries(bundle) for bundle in unnamed], self._seeded.hidden), strict=True)
        for bundle in self._seeded.bundles:
            if not bundle.number:
                yield bundle, bundle.entries

    def files(self, entry: str) -> dict[str, File]:
        """Return the files that the job was given; none if their bundle is gone from both node and store."""
        return self._entries(self.sources[entry]).get(entry, {})

    def _entries(self, bundle: SeededBundle) -> Entries:
        if bundle.sha256 not in self._bundles:
            self._bundles[bundle.sha256] = self._read(bundle)
        return self._bundles[bundle.sha256]

    @property
    def was_asked(self) -> bool:
        """Whether there was an entry that the job was not given."""
        return self._stored is not None

    def has(self, entry: str) -> bool:
        """Return whether the job was given an entry, or the store has it."""
        if entry in self.sources:
            return True
        if self._stored is None:
            self._stored = frozenset(self._ask())
        return entry in self._stored

    def named_by(self, touched: set[str], entry_of: Callable[[str], str | None]) -> list[str]:
        """Return the given entries that may have changed, by the names that an overlay's upper layer has."""
        if not touched:
            return []
        named = {*touched, *map(entry_of, touched), *(folder for path in touched for folder in parents(path))}
        return [entry for entry in self.sources if entry in named or not touched.isdisjoint(parents(entry))]


NOTHING_KNOWN = Known(Seeded(""), lambda _: {}, lambda: ())
