"""Bounds of a harvest: no bundle is larger than what a job fetches."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lib.late_node import LateNode
from tests.lib.numba_entries import numba_entries
from warmstart.store import bundles

pytestmark = pytest.mark.usefixtures("capable_host")


def test_one_harvest_fits_into_what_a_job_fetches(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next job publishes the rest. An oversized bundle would keep its entries from all (first wins)."""
    entries = numba_entries(1, 2, 3, 4)
    size = sum(len(data) for data in entries[min(entries)].values())
    monkeypatch.setattr(bundles, "MOST_BYTES", 1536)
    node = LateNode(base)
    assert 2 * size <= 1536 < 3 * size
    for number in (1, 2):
        node.epilog(node.run_of(number, entries=entries), budget=30.0)
        assert len(node.site.seen()) == 2 * number
    node.maintain()
    assert [event["bytes"] for event in node.site.events("cache.harvested")] == [2 * size, 2 * size]
    assert [bool(event.get("truncated")) for event in node.site.events("cache.harvested")] == [True, False]
