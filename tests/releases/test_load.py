"""A load run (tools/load), shorter than `python -m tools.load`."""

from __future__ import annotations

import pytest

from tools.load.run import Load, prepared, record


@pytest.mark.sweep
def test_nothing_is_left_drained_or_untold(capable_host: None) -> None:
    with prepared() as (site, registry, front):
        outcome = Load(site, registry, front, 300, 2).run(print)
    record(outcome)
    assert outcome.findings == []
    assert outcome.jobs >= 300
    assert len(outcome.faults) > 6
