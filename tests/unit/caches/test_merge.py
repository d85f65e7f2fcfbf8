"""A listing through any changes: an overlay of its rows shows each entry whole, of one job, or not at all."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmstart.caches.store import merge
from warmstart.caches.store.layout import Entries, File, content_digest
from warmstart.caches.store.listing import Listing, Row, checked, decode, encode
from warmstart.caches.store.merge import Change, Removal

ENTRIES = ["a", "b", "c", "d"]
PARTS = ["1", "2", "3/x"]
Parts = dict[str, frozenset[str]]  # entry → which files it has


class Publish(NamedTuple):
    """A job publishes entries, of which it changed some; it removed others."""

    made: Parts
    changed: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()
    fresh: bool = False
    late: bool = False  # it was seeded with another bundle than readers have now


class Remove(NamedTuple):
    """Somebody takes bundles and entries out."""

    bundles: frozenset[int] = frozenset()  # by their place
    entries: frozenset[str] = frozenset()


class Compact(NamedTuple):
    """Maintenance makes one bundle of some."""

    bundles: frozenset[int]


class Lose(NamedTuple):
    """The list of a bundle's files is gone."""

    bundle: int


def some(of: list[str]) -> st.SearchStrategy[frozenset[str]]:
    """Return any of these."""
    return st.frozensets(st.sampled_from(of))


MADE = st.dictionaries(st.sampled_from(ENTRIES), some(PARTS).filter(bool), min_size=1)
PUBLISH = st.builds(Publish, MADE, some(ENTRIES), some(ENTRIES), st.booleans(), st.booleans())
PLACES = st.frozensets(st.integers(0, 4))
CHANGES = st.one_of(PUBLISH, PUBLISH, st.builds(Remove, PLACES, some(ENTRIES)), st.builds(Compact, PLACES))
Act = Publish | Remove | Compact | Lose


class Place:
    """A namespace: its listing, the bundles that were ever put, and what readers are to get."""

    def __init__(self) -> None:
        self.listing = Listing()
        self.bundles: dict[str, Entries] = {}
        self.lost: set[str] = set()
        self.taken: dict[str, str] = {}  # entry → bundle

    def files_of(self, sha256: str) -> Entries | None:
        return None if sha256 in self.lost else self.bundles[sha256]

    def put(self, made: dict[str, list[str]]) -> Row:
        """Put a bundle with these paths."""
        sha256 = hashlib.sha256(str(len(self.bundles)).encode()).hexdigest()
        self.bundles[sha256] = {
            entry: {path: File(len(self.bundles), sha256, 0) for path in paths} for entry, paths in made.items()
        }
        return Row(sha256, 1, len(made), "a", 1, 7, 0)

    def at(self, places: frozenset[int]) -> list[Row]:
        return [row for place, row in enumerate(self.listing.rows) if place in places]

    def apply(self, change: Act) -> None:
        """Change the listing, and what is expected."""
        expected = dict(self.taken)
        match change:
            case Publish(made, changed, removed, fresh, late):
                new = self.put({entry: [f"{entry}/{part}" for part in parts] for entry, parts in made.items()})
                replaced = {*made} if fresh else changed
                had = {entry: self.bundles[self.taken[entry]][entry] for entry in removed if entry in self.taken}
                source = {entry: "0" * 64 if late else content_digest(files) for entry, files in had.items()}
                expected = {entry: sha for entry, sha in expected.items() if late or entry not in removed}
                if not expected.keys() >= made.keys() or replaced & made.keys():
                    expected.update(dict.fromkeys(made, new.sha256))
                result = merge.added(self.listing, Change(new, sorted(replaced), Removal(source)), self.files_of)
            case Remove(places, entries):
                rows = self.at(places)
                going = {row.sha256 for row in rows}
                expected = {e: sha for e, sha in expected.items() if sha not in going and e not in entries}
                result = merge.without(self.listing, lambda row: row in rows, entries, self.files_of)
            case Compact(places):
                rows = self.at(places)
                new = self.put(
                    {e: [*self.bundles[sha][e]] for e, sha in self.taken.items() if sha in {r.sha256 for r in rows}}
                )
                made_of = self.bundles[new.sha256]
                expected = {e: new.sha256 if e in made_of else sha for e, sha in expected.items()}
                result = merge.compacted(self.listing, rows, new, made_of)
            case Lose(place):
                self.lost.update(row.sha256 for row in self.at(frozenset({place})))
                return
        assert result != self.listing
        self.listing = result or self.listing
        self.taken = expected

    def provided(self) -> dict[str, str]:
        """Return what the listing says that readers take."""
        rows = zip(self.listing.rows, self.listing.names, strict=True)
        return {entry: row.sha256 for row, names in rows for entry in names}

    def seen(self) -> dict[str, set[tuple[str, str]]]:
        """Return what an overlay of all rows shows: entry → paths, and of which bundle."""
        hidden, covered = {*self.listing.hidden}, set[str]()
        seen: dict[str, set[tuple[str, str]]] = {}
        for row in self.listing.rows:
            for entry, files in self.bundles[row.sha256].items():
                for path in files:
                    if path not in covered and hidden.isdisjoint({path, *parents(path)}):
                        seen.setdefault(entry, set()).add((path, row.sha256))
            covered.update(path for files in self.bundles[row.sha256].values() for path in files)
        return seen

    def check(self) -> None:
        """Check the rules of a listing."""
        provided = self.provided()
        assert self.seen() == {e: {(path, sha) for path in self.bundles[sha][e]} for e, sha in provided.items()}
        for row, names, lost in zip(self.listing.rows, self.listing.names, self.listing.lost, strict=True):
            assert {*names, *lost} == self.bundles[row.sha256].keys()
            assert names
        checked(self.listing, named=True)
        written, text = encode(self.listing)
        assert decode(text, "here", named=True) == written


def parents(path: str) -> Iterator[str]:
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


@settings(max_examples=300)
@given(st.lists(CHANGES, max_size=8))
def test_readers_get_what_the_changes_say(changes: list[Act]) -> None:
    place = Place()
    for change in changes:
        place.apply(change)
        place.check()
        assert place.provided() == place.taken
        assert place.listing.hidden == [] or any(place.listing.lost)


@given(st.lists(st.one_of(CHANGES, st.builds(Lose, st.integers(0, 4))), max_size=10))
def test_a_bundle_whose_list_of_files_is_lost_mixes_nothing(changes: list[Act]) -> None:
    place = Place()
    for change in changes:
        before = place.provided()
        place.apply(change)
        place.check()
        made = {row.sha256 for row in place.listing.rows} - {*before.values()}
        assert {*place.provided().items()} <= {*before.items()} | {(entry, sha) for sha in made for entry in ENTRIES}
        place.taken = place.provided()


def test_what_is_new_goes_to_the_bottom_and_what_takes_a_place_to_the_top() -> None:
    place = Place()
    one = frozenset("1")
    for change in (Publish({"a": one}), Publish({"b": one}), Publish({"a": one}, frozenset("a")), Publish({"c": one})):
        place.apply(change)
    assert place.listing.names == [["a"], ["b"], ["c"]]


def test_a_users_scope_hides_what_wider_ones_have_until_it_has_it_itself() -> None:
    place = Place()
    hiding = merge.added(place.listing, Change(removal=Removal(hide=["b", "a"])), place.files_of)
    assert hiding
    assert hiding.hide == ["a", "b"]
    assert merge.added(hiding, Change(removal=Removal(hide=["a"])), place.files_of) is None
    made = merge.added(hiding, Change(place.put({"a": ["a/1"]})), place.files_of)
    assert made
    assert (made.hide, made.names) == (["b"], [["a"]])


def test_what_was_published_again_changes_nothing() -> None:
    place = Place()
    new = Change(place.put({"a": ["a/1"]}), ["a"])
    first = merge.added(place.listing, new, place.files_of)
    assert first
    assert merge.added(first, new._replace(removal=Removal({"b": "0" * 64})), place.files_of) is None


def test_a_compaction_brings_nothing_back() -> None:
    place = Place()
    for entry in "ab":
        place.apply(Publish({entry: frozenset("1")}))
    before = place.listing.rows
    new = place.put({"a": ["a/1"], "b": ["b/1"]})
    place.apply(Remove(entries=frozenset("a")))
    assert merge.compacted(place.listing, before, new, "ab") is None
    assert merge.compacted(place.listing, [], new, "ab") is None
    assert merge.compacted(place.listing, place.listing.rows, new, "ab") is None  # it has more than these


@pytest.mark.parametrize("is_lost", [False, True])
def test_what_a_bundle_covered_does_not_come_back_when_it_leaves(is_lost: bool) -> None:
    place = Place()
    one = frozenset("1")
    place.apply(Publish({"a": one, "b": one}))
    place.apply(Publish({"a": one}, frozenset("a")))
    place.apply(Publish({"c": one}))
    if is_lost:  # nobody knows what it covered: what it may have covered goes, too
        place.apply(Lose(0))
    place.apply(Remove(frozenset({0})))
    place.check()
    assert place.provided().keys() == ({"c"} if is_lost else {"b", "c"})


@pytest.mark.parametrize(("first", "second"), [("x", "x/y"), ("x/y", "x")])
def test_a_file_in_the_place_of_a_directory_is_not_hidden(first: str, second: str) -> None:
    place = Place()
    old = merge.added(Listing(), Change(place.put({first: [first], "b": ["b/1"]})), place.files_of)
    assert old
    gone = merge.without(old, lambda _: False, [first], place.files_of)
    assert gone
    assert gone.hidden == [first]
    new = merge.added(gone, Change(place.put({second: [second]})), place.files_of)
    assert new
    assert new.hidden == []
