"""A job sees each entry as one bundle has it, whatever the bundles contain (docs/threats.md, row 8)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lib.whiteouts import ODD_PATHS, PATHS, RULES, grouped, merged
from warmstart.seed import overlay
from warmstart.seed.overlay import Layer


@pytest.mark.threat(8)
@given(
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
            found.append((number, Layer(files, wanted)))
    visible = overlay.visible([layer for _, layer in found])
    assert visible.entries == [list(layer.entries) for _, layer in found]
    expected = {path: n for n, layer in found for entry in layer.entries for path in layer.files[entry]}
    assert merged([(n, bundles[n]) for n, _ in found], visible.hidden) == expected


@pytest.mark.threat(8)
@given(st.lists(ODD_PATHS, min_size=2, max_size=4), st.lists(st.sampled_from(RULES), min_size=4))
def test_bundles_that_disagree_on_entries_are_never_mixed(
    bundles: list[set[str]], rules: list[Callable[[str], str]]
) -> None:
    held = [grouped(paths, entry_of) for paths, entry_of in zip(bundles, rules, strict=False)]
    found = [Layer(files, sorted(files)) for files in held]
    visible = overlay.visible(found)
    shown = merged(list(enumerate(bundles)), visible.hidden)
    expected = {path: n for n, kept in enumerate(visible.entries) for entry in kept for path in held[n][entry]}
    assert shown == expected
