"""The making of caches is an act: the next step has whole ones, and the run leaves nothing."""

from __future__ import annotations

import os
from itertools import count
from pathlib import Path

import pytest

from tests.faults.acts import ONE, WHOLE, Act, deaths
from tests.lib.faults import Done, Fault, Faults
from tests.lib.wings.step_images.step_caches import Run
from warmstart import view
from warmstart.ending.release import release
from warmstart.host.deadline import after
from warmstart.run import state as runs


class Providing(Act):
    """A step's caches are made. Then comes another step, or the epilog."""

    def __init__(self, top: Path, then: str) -> None:
        self._top, self._then, self._numbers = top, then, count(1)

    def prepare(self) -> None:
        place = self._top / str(next(self._numbers))
        place.mkdir()
        self._run = Run(place)

    def run(self, fault: Fault | None = None, stop_at: int = 0) -> Done:
        def provide() -> int:
            self._run.provide()
            return 0

        return Faults({"state": str(self._top)}, fault, stop_at).run(provide, {})

    def check(self, _done: Done, _fault: Fault | None) -> list[str]:
        run, wrong = self._run, []
        if self._then == "another step":
            key = run.provide()
            keys, shown = [made.key for made in run.others if made.seeded], run.shown()
            if (keys, run.directories, shown) != ([key], [key], f"{key} /store/a.sqsh\n"):
                wrong.append(f"of {key} there are {keys}, {run.directories}, {shown}")
        record = runs.load(run.state, 7)
        assert record is not None
        context = run.context
        with runs.job_lock(run.state, 7, after(1)):
            failure = release(context._replace(run=record, deadline=after(10)), None).failure
            wrong += [str(failure)] if failure else []
        places = (run.state, context.paths.view, record.workspace)
        return wrong + [f"{place}/{name} is left" for place in places for name in os.listdir(place)]


@WHOLE
@pytest.mark.parametrize("then", ["another step", "the epilog"])
def test_a_maker_killed_before_every_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str, whole: bool
) -> None:
    monkeypatch.setattr(view, "allow_reading", lambda *_: None)
    wrong = deaths(Providing(tmp_path, then), 1 if whole else ONE)
    assert not wrong, "\n".join(wrong)
