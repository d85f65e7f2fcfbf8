"""What a job was seeded with: which entries may have changed, by names, and which have, by content."""

from __future__ import annotations

import pytest

from warmstart.harvest.seeded import SeededEntries
from warmstart.run.state import SeededBundle
from warmstart.store.manifest import Entries, File

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
    read = {"here": entries, "gone": {}}
    bundles = [SeededBundle("site", "here", "ab" * 32, list(NAMES)), SeededBundle("site", "gone", "cd" * 32, ["old"])]
    return SeededEntries(bundles, lambda bundle: read[bundle.bundle])


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
        read.append(bundle.bundle)
        return {} if bundle.bundle == "gone" else {name: {f"{name}.1": FILE} for name in NAMES}

    seeded = SeededEntries([SeededBundle("site", "here", "ab" * 32, [], 5)], entries_of)
    assert (seeded.below(set(), entry_of), read) == ([], [])
    assert seeded.below({"m/f.1"}, entry_of) == ["m/f"]
    assert ("m/g" in seeded, "new" in seeded, sorted(seeded.names), read) == (True, False, sorted(NAMES), ["here"])
    gone = SeededEntries([SeededBundle("site", "gone", "ab" * 32, [], 5)], entries_of)
    with pytest.raises(OSError, match="the bundle gone, which names what it was seeded with, is gone"):
        _ = "new" in gone
