"""The description of a spooled bundle."""

from __future__ import annotations

import json

import pytest

from tests.support.bundles import draft
from warmstart.harvest import spool
from warmstart.harvest.spool import Spooled
from warmstart.store.manifest import Base

ITEM = Spooled("user-1", "numba", "ns", draft("a"), "7.0a1b2c3d.numba", "ab" * 32)


@pytest.mark.parametrize("based_on", [{}, {"a": Base("site", "ab" * 32)}])
def test_a_spooled_bundle_comes_back_as_it_was(based_on: dict[str, Base]) -> None:
    """What the job was seeded with is kept, too: late as it is, the bundle takes the place of that or of nothing."""
    item = ITEM._replace(draft=ITEM.draft._replace(based_on=based_on, fresh=bool(based_on)))
    data = spool._encode(item)
    assert spool._decode(data) == item
    written = json.loads(data)
    assert written["draft"]["entries"] == {"a": {"a.nbi": [3, "ab" * 32, 17]}}


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
