"""What a job's containers said is counted when it is over, and bounded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.lib.runs import a_context
from warmstart import record as records
from warmstart.audit.events import Event
from warmstart.audit.line import Line
from warmstart.host.deadline import after
from warmstart.steps.contract import Context
from warmstart.wings.ready_roots import end
from warmstart.wings.ready_roots.settings import OWN


@pytest.fixture
def context(tmp_path: Path) -> Context:
    """Return the context of a job with a workspace and a record."""
    context = a_context(tmp_path)
    os.makedirs(context.record.run_directory)
    os.makedirs(f"{context.paths.state}/7", mode=0o700, exist_ok=True)
    records.save(context.paths.state, context.record)
    return context


def events(context: Context) -> list[Line]:
    """End the job; return its events."""
    emitted: list[Line] = []

    class Audit:
        """Takes what is emitted."""

        def emit(self, _: Event, **fields: object) -> None:
            """Take an event."""
            emitted.append(fields)

    end.job_over(context.paths, "n1", 7, Audit(), after(5))  # type: ignore[arg-type]
    return emitted


def test_containers_are_counted_by_their_way(context: Context) -> None:
    """A name of another form is none."""
    own = Path(context.record.run_directory, OWN)
    own.mkdir()
    for name in ("from-tree.a", "from-tree.b", "from-image.c", "from-moon.d", "71.x"):
        (own / name).touch()
    assert events(context) == [{"tree": 2, "image": 1, "unpacked": 0}]


def test_a_job_without_ready_roots_says_nothing(context: Context, tmp_path: Path) -> None:
    """Nor does one that has put a link there, or has no record."""
    assert events(context) == []
    Path(context.record.run_directory, OWN).symlink_to(tmp_path)
    assert events(context) == []
    records.forget(context.paths.state, 7)
    assert events(context) == []
