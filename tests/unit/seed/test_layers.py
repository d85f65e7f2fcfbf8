"""A job sees each entry as one bundle has it, whatever the bundles contain (docs/threats.md, row 8)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given as having
from hypothesis import strategies as st

from tests.lib.whiteouts import ODD_PATHS, PATHS, RULES, grouped, merged
from warmstart.caches.store import merge
from warmstart.caches.store.layout import Entries, File, content_digest
from warmstart.caches.store.listing import Listing, Row
from warmstart.caches.store.merge import Change, Removal
from warmstart.seed.layers import given, visible


@pytest.mark.threat(8)
@having(
    st.lists(st.sets(PATHS, min_size=1), min_size=1, max_size=5),
    st.sets(PATHS, max_size=3),
    st.sampled_from(RULES),
    st.integers(0, 31),
)
def test_an_entry_is_seen_as_one_bundle_has_it(
    bundles: list[set[str]], blocked: set[str], entry_of: Callable[[str], str], fetched: int
) -> None:
    """Each entry is shown whole from the bundle that provides it, and nothing else is shown."""
    never = {entry_of(path) for path in blocked}
    held = [grouped(paths, entry_of) for paths in bundles]
    taken = set(never)
    found = []
    for number, files in enumerate(held):
        wanted = sorted(files.keys() - taken)
        taken.update(wanted)
        if wanted and not fetched >> number & 1:
            found.append((number, wanted))
    seen = visible([held[number] for number, _ in found], [wanted for _, wanted in found])
    assert seen.entries == [wanted for _, wanted in found]
    expected = {path: n for n, wanted in found for entry in wanted for path in held[n][entry]}
    assert merged([(n, bundles[n]) for n, _ in found], seen.hidden) == expected


@pytest.mark.threat(8)
@having(st.lists(ODD_PATHS, min_size=2, max_size=4), st.lists(st.sampled_from(RULES), min_size=4))
def test_bundles_that_disagree_on_entries_are_never_mixed(
    bundles: list[set[str]], rules: list[Callable[[str], str]]
) -> None:
    held = [grouped(paths, entry_of) for paths, entry_of in zip(bundles, rules, strict=False)]
    seen = visible(held, [sorted(files) for files in held])
    shown = merged(list(enumerate(bundles)), seen.hidden)
    expected = {path: n for n, kept in enumerate(seen.entries) for entry in kept for path in held[n][entry]}
    assert shown == expected


@pytest.mark.threat(8)
@having(
    st.lists(st.tuples(st.sets(PATHS, min_size=1), st.booleans()), min_size=1, max_size=5),
    st.sets(PATHS, max_size=4),
    st.sampled_from(RULES),
)
def test_who_shows_all_of_a_listing_needs_no_names(
    published: list[tuple[set[str], bool]], removed: set[str], entry_of: Callable[[str], str]
) -> None:
    """What its writer hides leaves what its names say, and these can be found again by the bundles' files."""
    held: dict[str, Entries] = {}
    listing = Listing()
    for number, (paths, fresh) in enumerate(published):
        entries = {entry: {path: File(1, "", 0) for path in files} for entry, files in grouped(paths, entry_of).items()}
        row = Row(f"{number:064x}", 1, len(entries), "a", 1, 7, 0)
        held[row.sha256] = entries
        listing = merge.added(listing, Change(row, [*entries] if fresh else []), held.get) or listing
    given_from = {name: row.sha256 for row, names in zip(listing.rows, listing.names, strict=True) for name in names}
    going = {*map(entry_of, removed)} & given_from.keys()
    gone = {entry: content_digest(held[given_from[entry]][entry]) for entry in going}
    listing = merge.added(listing, Change(removal=Removal(gone)), held.get) or listing
    bundles = [held[row.sha256] for row in listing.rows]
    shown = merged(
        [(n, {path for files in held.values() for path in files}) for n, held in enumerate(bundles)], listing.hidden
    )
    assert shown == {path: n for n, names in enumerate(listing.names) for name in names for path in bundles[n][name]}
    assert [sorted(names) for names in given(bundles, listing.hidden)] == [sorted(names) for names in listing.names]
