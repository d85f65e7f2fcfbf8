"""What wings say of their events."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from warmstart import wing
from warmstart.audit import told
from warmstart.audit.events import Event
from warmstart.audit.line import Line
from warmstart.audit.runs import Failure, runs
from warmstart.audit.told import Told
from warmstart.report.story import History, Part, tell
from warmstart.report.summary import Counted, in_units, summarize


def made(line: Line) -> Told:
    """Say what came of a thing."""
    if "error" in line:
        return Told("things")
    return Told("things", "a", "was made", {"thing made bytes: new": 4096})


@pytest.fixture(autouse=True)
def part(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let a wing be here that tells of its things."""
    monkeypatch.setattr(wing, "with_part", lambda _: ["things.told"])
    monkeypatch.setattr(wing, "load", lambda _: SimpleNamespace(EVENTS={Event("thing.made"): made}))
    told.events.cache_clear()
    yield
    told.events.cache_clear()


def test_what_a_wing_tells_is_told_and_counted() -> None:
    """By explain and in reports; what has an error is a failure of the wing's step."""
    line = {"hook": "prolog", "run_id": "0a", "node": "n1", "job_id": 7, "ts": "2026-01-31T09:30:00.250Z"}
    error = {"code": "thing-lost", "reason": "it is lost", "hint": "look"}
    events: list[Line] = [{**line, "event": "thing.made"}, {**line, "event": "thing.made", "error": error}]
    (run,) = runs(events)
    assert Part("things", "", "a: was made") in tell([run], History()).hooks[0].parts
    assert run.failures == [Failure("failed", "things", "thing-lost", "it is lost", "look")]
    (counted,) = summarize([run]).of_wings
    assert counted == Counted("thing made bytes: new", 4096)
    assert (in_units(counted), in_units(Counted("things made", 4096))) == ("4KiB", "4,096")
