"""Bundles that a node fetches off the clock of jobs: how many, and for whom."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.bundles import ASKER
from warmstart.seed.wanted import FETCHES, Wanted, beside


@pytest.mark.threat(41)
def test_a_scope_has_a_bound(tmp_path: Path) -> None:
    """One that wants too many does not keep others from wanting. They wait beside the copies."""
    wanted = beside(str(tmp_path / "bundles"))
    items = [Wanted(f"{number:064x}", 10, "user-1", "numba", "ns", f"b{number}", ASKER) for number in range(17)]
    assert [wanted.add(item.scope, item.sha256, item) for item in items] == [True] * FETCHES.most + [False]
    assert wanted.add("user-2", "f" * 64, items[0])
    found = wanted.find(items[3].sha256)
    assert found
    assert wanted.read(found, Wanted) == items[3]
