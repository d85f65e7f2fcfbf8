"""The description of a spooled bundle."""

from __future__ import annotations

import json

import pytest

from tests.support.bundles import draft
from warmstart.harvest import spool
from warmstart.harvest.spool import Spooled

ITEM = Spooled("user-1", "numba", "ns", draft("a"), "7.0a1b2c3d.numba", "ab" * 32)


@pytest.mark.parametrize("based_on", [None, "", "20260101T000000.000000Z-abababababababab"])
def test_a_spooled_bundle_comes_back_as_it_was(based_on: str | None) -> None:
    """For a profile that keeps the newest, the bundle that the job began with is kept, too; "" is none."""
    item = ITEM._replace(draft=ITEM.draft._replace(based_on=based_on))
    data = spool._encode(item)
    assert spool._decode(data) == item
    written = json.loads(data)
    assert written["draft"]["entries"] == {"a": {"a.nbi": [3, "ab" * 32, 17]}}
    assert ("based_on" in written["draft"]) == (based_on is not None)


@pytest.mark.parametrize(
    "change",
    [
        {"draft": None},
        {"draft": {}},
        {"draft": {"producer": {}, "facts": {}, "entries": {}}},
        {"scope": 1},
        {"more": "x"},
    ],
)
def test_what_is_damaged_is_said_to_be(change: dict[str, object]) -> None:
    """A damaged description raises `ValueError`, so its bundle is dropped."""
    with pytest.raises(ValueError, match=r"damaged|expected|missing"):
        spool._decode(json.dumps({**json.loads(spool._encode(ITEM)), **change}).encode())
    with pytest.raises(ValueError, match="damaged"):
        spool._decode(b"[]")
