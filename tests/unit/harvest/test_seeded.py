"""What a job was seeded with: which entries may have changed, by names, and which have, by content."""

from __future__ import annotations

import pytest

from warmstart.caches.store.layout import Entries, File
from warmstart.harvest.seeded import SeededEntries
from warmstart.run.state import SeededBundle

FILE, OTHER = File(1, "ab" * 32, 17), File(1, "cd" * 32, 17)
NAMES = ("m/f", "m/g", "n/f", "k.d", "top")


def entry_of(path: str) -> str | None:
    """Map `<entry>.<digit>` to the entry, and all of `<name>.d/` to one entry."""
    if ".d/" in path:
        return path.partition("/")[0]
    return path[:-2] if path[-1].isdigit() else None


@pytest.fixture
def seeded() -> SeededEntries:
    """Return entries of two bundles, of which one is gone."""
    entries: Entries = {name: {f"{name}.1": FILE, f"{name}.p": FILE} for name in NAMES}
    read = {"ab" * 32: entries, "cd" * 32: {}}
    bundles = [SeededBundle("site", "ab" * 32, list(NAMES)), SeededBundle("site", "cd" * 32, ["old"])]
    return SeededEntries(bundles, lambda bundle: read[bundle.sha256])


@pytest.mark.parametrize(
    ("touched", "expected"),
    [
        ({"m/f.1"}, ["m/f"]),
        ({"m"}, ["m/f", "m/g"]),
        ({"k.d/x/y"}, ["k.d"]),
        ({"k.d", "top.7"}, ["k.d", "top"]),
        ({"old.1"}, ["old"]),
        ({"mm/f.1", "other"}, []),
    ],
)
def test_an_upper_layer_tells_which_entries_may_have_changed(
    seeded: SeededEntries, touched: set[str], expected: list[str]
) -> None:
    assert seeded.below(touched, entry_of) == expected


def test_names_that_the_record_leaves_out_are_read_when_they_are_asked_for() -> None:
    read: list[str] = []

    def entries_of(bundle: SeededBundle) -> Entries:
        read.append(bundle.sha256)
        return {} if bundle.sha256 == "cd" * 32 else {name: {f"{name}.1": FILE} for name in NAMES}

    seeded = SeededEntries([SeededBundle("site", "ab" * 32, [], 5)], entries_of)
    assert (seeded.below(set(), entry_of), read) == ([], [])
    assert seeded.below({"m/f.1"}, entry_of) == ["m/f"]
    assert ("m/g" in seeded, "new" in seeded, sorted(seeded.names), read) == (True, False, sorted(NAMES), ["ab" * 32])
    gone = SeededEntries([SeededBundle("site", "cd" * 32, [], 5)], entries_of)
    with pytest.raises(OSError, match=r"the bundle cdcd.* names what it was seeded with, is gone"):
        _ = "new" in gone
