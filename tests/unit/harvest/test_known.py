"""What a job was seeded with: which entries may have changed, by names, and which have, by content."""

from __future__ import annotations

import pytest

from warmstart.caches.store.layout import Entries, File
from warmstart.harvest.known import Known
from warmstart.run.state import Seeded, SeededBundle

FILE, OTHER = File(1, "ab" * 32, 17), File(1, "cd" * 32, 17)
NAMES = ("m/f", "m/g", "n/f", "k.d", "top")


def entry_of(path: str) -> str | None:
    """Map `<entry>.<digit>` to the entry, and all of `<name>.d/` to one entry."""
    if ".d/" in path:
        return path.partition("/")[0]
    return path[:-2] if path[-1].isdigit() else None


@pytest.fixture
def known() -> Known:
    """Return entries of two bundles, of which one is gone."""
    entries: Entries = {name: {f"{name}.1": FILE, f"{name}.p": FILE} for name in NAMES}
    read = {"ab" * 32: entries, "cd" * 32: {}}
    bundles = [SeededBundle("site", "ab" * 32, list(NAMES)), SeededBundle("site", "cd" * 32, ["old"])]
    return Known(Seeded("ns", bundles), lambda bundle: read[bundle.sha256], list)


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
    known: Known, touched: set[str], expected: list[str]
) -> None:
    assert known.named_by(touched, entry_of) == expected


def test_names_that_the_record_leaves_out_are_read_when_they_are_asked_for() -> None:
    read: list[str] = []

    def entries_of(bundle: SeededBundle) -> Entries:
        read.append(bundle.sha256)
        return {} if bundle.sha256 == "cd" * 32 else {name: {f"{name}.1": FILE} for name in NAMES}

    known = Known(Seeded("ns", [SeededBundle("site", "ab" * 32, [], 5)]), entries_of, list)
    assert (known.named_by(set(), entry_of), read) == ([], [])
    assert known.named_by({"m/f.1"}, entry_of) == ["m/f"]
    assert (known.has("m/g"), known.was_asked) == (True, False)
    assert (known.has("new"), known.was_asked) == (False, True)
    assert (sorted(known.sources), read) == (sorted(NAMES), ["ab" * 32])
    gone = Known(Seeded("ns", [SeededBundle("site", "cd" * 32, [], 5)]), entries_of, list)
    with pytest.raises(OSError, match=r"the bundle cdcd.* names what it was seeded with, is gone"):
        gone.has("new")
