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
from warmstart.caches.store.listing import Listing, Row, check_user
from warmstart.lean import TYPE_CHECKING, Callable, Collection, Iterable, Iterator, Mapping, NamedTuple, Sequence

if TYPE_CHECKING:
    FilesOf = Callable[[str], Entries | None]


class Removal(NamedTuple):
    """What a job removed of what it was given."""

    given: dict[str, str] = {}  # noqa: RUF012 - entry → digest of its content, as it came from this scope
    hide: list[str] = []  # noqa: RUF012 - entries that came from wider scopes, where the scope is the user's own


class Change(NamedTuple):
    """What one job makes and removes."""

    row: Row | None = None  # of a bundle that lies in place
    changed: list[str] = []  # noqa: RUF012 - its entries that take the place of what is there; never mutated
    removal: Removal = Removal()


def added(old: Listing, change: Change, files_of: FilesOf) -> Listing | None:
    """Return the listing with what a job made, and without what it removed; None if that changes nothing.

    Raises `HarvestTooLarge` if the names of the job's user are too long with it.
    """
    state, row, removal = _State(old, files_of), change.row, change.removal
    state.take_given(removal.given)
    is_added = row is not None and state.add(row, change.changed)
    provided = state.provided()
    new = state.settled([entry for entry in sorted({*old.hide, *removal.hide}) if entry not in provided])
    if row and new and is_added:
        check_user(new, row.user, row.uid)
    return new


def without(old: Listing, leaves: Callable[[Row], bool], entries: Collection[str], files_of: FilesOf) -> Listing | None:
    """Return the listing without some rows, and without entries of the others; None if that changes nothing.

    What the rows covered does not come back: it was stale when they took its place.
    """
    state = _State(old, files_of)
    for row in filter(leaves, old.rows):
        state.drop(row)
    state.take(entries)
    return state.settled(old.hide)


def compacted(old: Listing, before: Sequence[Row], row: Row, names: Collection[str]) -> Listing | None:
    """Return the listing with one bundle in place of those that it was made of, what readers took from them.

    None if one of these rows is not as it was: something of it was replaced or removed, and would come back.
    """
    rows, every, lost = [*old.rows], [*old.names], [*old.lost]
    there = [number for number, known in enumerate(rows) if known in before]
    taken = {entry for number in there for entry in every[number]}
    if not before or len(there) < len(before) or taken != {*names}:
        return None
    rows[there[0]], every[there[0]], lost[there[0]] = row, [*names], []
    for number in reversed(there[1:]):
        del rows[number], every[number], lost[number]
    return old._replace(rows=rows, names=every, lost=lost, hidden=old.hidden if any(lost) else [])


class _Bundle(NamedTuple):
    """A row while it is merged; of its entries sets that keep their order."""

    row: Row
    names: dict[str, None]
    lost: dict[str, None]


class _State:
    def __init__(self, old: Listing, files_of: FilesOf) -> None:
        self._old = old
        self._files_of = files_of
        self._bundles = [
            _Bundle(row, dict.fromkeys(names), dict.fromkeys(lost))
            for row, names, lost in zip(old.rows, old.names, old.lost, strict=True)
        ]
        self._hidden = {*old.hidden}

    def provided(self) -> set[str]:
        return {entry for bundle in self._bundles for entry in bundle.names}

    def add(self, row: Row, changed: Collection[str]) -> bool:
        """Have a row provide all that its bundle has; return False if nothing of it is needed, or it is there."""
        files, provided = self._files_of(row.sha256), self.provided()
        if files is None or any(bundle.row.sha256 == row.sha256 for bundle in self._bundles):
            return False
        if provided.issuperset(files) and files.keys().isdisjoint(changed):
            return False
        covers = not files.keys().isdisjoint(provided.union(*(bundle.lost for bundle in self._bundles)))
        if covers:
            self.take(files)
        self._bundles.insert(0 if covers else len(self._bundles), _Bundle(row, dict.fromkeys(files), {}))
        if self._hidden:
            paths = {path for names in files.values() for path in names}
            shown = paths.union(*map(_parents, paths))
            self._hidden = {path for path in self._hidden - shown if paths.isdisjoint(_parents(path))}
        return True

    def take_given(self, given: Mapping[str, str]) -> None:
        """Have no row provide these entries, if their content still has these digests."""
        for bundle in [*self._bundles]:
            named = [entry for entry in given if entry in bundle.names]
            files = self._files_of(bundle.row.sha256) if named else None
            if files is not None:
                self.take([entry for entry in named if content_digest(files.get(entry, {})) == given[entry]])

    def take(self, entries: Iterable[str]) -> None:
        """Have no row provide these entries."""
        for bundle in [*self._bundles]:
            taken = [entry for entry in entries if entry in bundle.names]
            if taken and not self._hide(bundle, taken):
                self.drop(bundle.row)
            for entry in taken:
                del bundle.names[entry]
                bundle.lost[entry] = None

    def drop(self, row: Row) -> None:
        """Have a row leave. Where its files are lost, those leave, too, of which it covers something."""
        for bundle in [one for one in self._bundles if one.row == row]:
            self._bundles.remove(bundle)
            covered = {entry for other in self._bundles for entry in other.lost if entry in bundle.names}
            if covered and not self._hide(bundle, covered):
                for other in [other for other in self._bundles if not covered.isdisjoint(other.lost)]:
                    self.drop(other.row)

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
        rows = [bundle.row._replace(number=len(bundle.names)) for bundle in left]
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
