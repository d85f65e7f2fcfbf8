"""What becomes of a listing: pure functions of the listing that is there and of what is to change in it.

All of them keep the rules of `listing`. What a job made goes to the bottom if no bundle has any of its entries: then
the oldest bundles stay on top, which most nodes have. Else it goes to the top, and readers take from it all that it
has: layers could not show some of its entries below, and others above, an older bundle. So of two jobs that made the
same at the same time the last one counts, and what a job changed, or made in spite of what there was (`fresh`), takes
the place of that. What a job removed goes only while it has the content that the job was given: newer work stays.

`files_of` returns the files of a bundle's entries by its hash; None if they are lost. A bundle without them cannot be
hidden in part, so its row leaves, as nobody can say what it covers.
"""

from __future__ import annotations

from warmstart.caches.store.layout import Entries, content_digest
from warmstart.caches.store.listing import Listing, Row
from warmstart.lean import TYPE_CHECKING, Callable, Collection, Iterable, Iterator, Mapping, NamedTuple, Sequence

if TYPE_CHECKING:
    FilesOf = Callable[[str], Entries | None]


class Addition(NamedTuple):
    """A bundle that lies in place, to be listed."""

    row: Row
    names: list[str]  # its entries
    changed: list[str] = []  # noqa: RUF012 - those that take the place of what is there; of a job that began `fresh`, all


class Removal(NamedTuple):
    """What a job removed of what it was given."""

    given: dict[str, str] = {}  # noqa: RUF012 - entry → digest of its content, as it came from this scope
    hide: list[str] = []  # noqa: RUF012 - entries that came from wider scopes, where the scope is the user's own


NOTHING = Removal()


def added(old: Listing, new: Addition | None, removal: Removal, files_of: FilesOf) -> Listing | None:
    """Return the listing with what one job made, and without what it removed; None if that changes nothing."""
    state = _State(old, files_of)
    state.take_given(removal.given)
    if new is not None and not state.has(new.row.sha256):
        state.add(new)
    hide = [entry for entry in sorted({*old.hide, *removal.hide}) if entry not in state.provided()]
    return state.settled(hide)


def without(old: Listing, leaves: Callable[[Row], bool], entries: Collection[str], files_of: FilesOf) -> Listing | None:
    """Return the listing without some rows, and without entries of the others; None if that changes nothing.

    What the rows covered does not come back: it was stale when they took its place.
    """
    state = _State(old, files_of)
    for row in old.rows:
        if leaves(row):
            state.drop(row.sha256)
    state.take(entries)
    return state.settled(old.hide)


def compacted(old: Listing, before: Sequence[Row], new: Addition) -> Listing | None:
    """Return the listing with one bundle in place of those that it was made of, what readers took from them.

    None if one of these rows is not as it was: something of it was replaced or removed, and would come back.
    """
    there = [number for number, row in enumerate(old.rows) if row in before]
    taken = {entry for number in there for entry in old.names[number]}
    if not before or len(there) < len(before) or taken != {*new.names}:
        return None
    state = _State(old, lambda _: None)
    state.replace(there, new)
    return state.settled(old.hide)


class _Bundle:
    """A row while it is merged."""

    def __init__(self, row: Row, names: Iterable[str], lost: Iterable[str] = ()) -> None:
        self.row = row
        self.names = dict.fromkeys(names)  # a set that keeps its order
        self.lost = dict.fromkeys(lost)

    def settled(self) -> Row:
        return self.row._replace(number=len(self.names), total=len(self.names) + len(self.lost))


class _State:
    def __init__(self, old: Listing, files_of: FilesOf) -> None:
        self._old = old
        self._files_of = files_of
        self._bundles = [_Bundle(*row) for row in zip(old.rows, old.names, old.lost, strict=True)]
        self._hidden = {*old.hidden}

    def has(self, sha256: str) -> bool:
        return any(bundle.row.sha256 == sha256 for bundle in self._bundles)

    def provided(self) -> set[str]:
        return {entry for bundle in self._bundles for entry in bundle.names}

    def add(self, new: Addition) -> None:
        provided, names = self.provided(), {*new.names}
        if provided.issuperset(names) and names.isdisjoint(new.changed):
            return
        files = self._files_of(new.row.sha256)
        if files is None or not files.keys() >= names:
            return
        there = provided.union(*(bundle.lost for bundle in self._bundles))
        covers = not names.isdisjoint(there)
        if covers:
            self.take(names)
        self._bundles.insert(0 if covers else len(self._bundles), _Bundle(new.row, new.names))
        paths = {path for entry in names for path in files[entry]} if self._hidden else set()
        shown = paths.union(*map(_parents, paths))
        self._hidden = {path for path in self._hidden - shown if paths.isdisjoint(_parents(path))}

    def take_given(self, given: Mapping[str, str]) -> None:
        """Have no row provide these entries, if their content still has these digests."""
        for bundle in [*self._bundles]:
            named = [entry for entry in given if entry in bundle.names]
            files = self._files_of(bundle.row.sha256) if named else None
            if files is not None:
                self.take([entry for entry in named if content_digest(files.get(entry, {})) == given[entry]])

    def take(self, entries: Collection[str]) -> None:
        """Have no row provide these entries."""
        for bundle in [*self._bundles]:
            taken = [entry for entry in entries if entry in bundle.names]
            if taken and not self._hide(bundle, taken):
                self.drop(bundle.row.sha256)
            for entry in taken:
                del bundle.names[entry]
                bundle.lost[entry] = None

    def drop(self, sha256: str) -> None:
        """Have a row leave. Where its files are lost, those leave, too, of which it covers something."""
        for bundle in [*self._bundles]:
            if bundle.row.sha256 == sha256:
                self._bundles.remove(bundle)
                covered = {entry for other in self._bundles for entry in other.lost if entry in bundle.names}
                if covered and not self._hide(bundle, covered):
                    for other in [other for other in self._bundles if not covered.isdisjoint(other.lost)]:
                        self.drop(other.row.sha256)

    def replace(self, there: Sequence[int], new: Addition) -> None:
        self._bundles[there[0]] = _Bundle(new.row, new.names)
        self._bundles = [bundle for number, bundle in enumerate(self._bundles) if number not in there[1:]]

    def _hide(self, bundle: _Bundle, entries: Iterable[str]) -> bool:
        """Hide the files of entries in all layers; return False if nobody knows them."""
        files = self._files_of(bundle.row.sha256)
        if files is None:
            return False
        self._hidden.update(path for entry in entries for path in files.get(entry, ()))
        return True

    def settled(self, hide: list[str]) -> Listing | None:
        """Return the new listing, without rows that provide nothing; None if it is the old one."""
        left = [bundle for bundle in self._bundles if bundle.names]
        rows = [bundle.settled() for bundle in left]
        hidden = self._hidden if any(bundle.lost for bundle in left) else set()
        paths = sorted(path for path in hidden if hidden.isdisjoint(_parents(path)))
        if (rows, paths, hide) == (self._old.rows, self._old.hidden, self._old.hide):
            return None
        names, lost = [[*bundle.names] for bundle in left], [[*bundle.lost] for bundle in left]
        return self._old._replace(rows=rows, hidden=paths, hide=hide, names=names, lost=lost)


def _parents(path: str) -> Iterator[str]:
    """Yield the parent directories of a path, deepest first."""
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path
