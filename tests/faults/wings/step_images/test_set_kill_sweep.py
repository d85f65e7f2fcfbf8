"""The maker of a set of caches, killed at every call: the next step has a whole one, and the run leaves nothing."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

import pytest

from tests.lib.vanish import WHENS, vanishes
from tests.lib.wings.step_images.step_sets import Run
from warmstart import record as records
from warmstart import run_end, view
from warmstart.host.deadline import after


@WHENS
@pytest.mark.parametrize("then", ["another step", "the epilog"])
def test_a_maker_killed_at_any_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, when: str, then: str) -> None:
    """Whoever comes next finds the set whole, or undoes it."""
    monkeypatch.setattr(view, "allow_reading", lambda *_: None)
    for call in count(1):
        (tmp_path / str(call)).mkdir()
        run = Run(tmp_path / str(call))
        died = vanishes(run.provide, call, when)
        if then == "another step":
            key = run.provide()
            (made,) = run.sets
            assert (made.key, run.directories, run.shown()) == (key, [key], f"{key} /store/a.sqsh\n")
            assert made.seeded
        record = records.load(run.state, 7)
        assert record is not None
        context = run.context
        with records.job_lock(run.state, 7, after(1)):
            ending = run_end.Ending(context.policy, context.paths, record, context.audit, context.store)
            assert run_end.release(ending, after(10)) == []
        left = [os.listdir(run.state), os.listdir(context.paths.view), os.listdir(record.workspace)]
        assert left == [[], [], []]
        context.store.close()
        if not died:
            assert call > 20
            return
