"""The step `release`: a run is over, and what could not be told to the store is a non-fatal error."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from warmstart import run_end
from warmstart.run import state as runs
from warmstart.steps import release
from warmstart.steps.contract import Context, Outcome
from warmstart.store import barrier
from warmstart.store.barrier import Topic
from warmstart.store.layout import StoreFailed


@pytest.fixture
def ended(context: Context) -> Context:
    """Give a context whose job has ended and had a workspace."""
    runs.save(context.paths.state, context.run)
    os.makedirs(f"{context.run.directory}/cache/numba")
    Path(context.run.directory, context.run.mark).touch()
    return context


def test_nothing_is_left_and_again_is_fine(ended: Context) -> None:
    for _ in range(2):
        assert release.run(ended, release.Options()) == Outcome()
        assert os.listdir(ended.run.workspace) == []
        assert runs.load(ended.paths.state, 7) is None


@pytest.mark.parametrize("is_there", [True, False])
def test_what_the_node_said_is_taken_down(ended: Context, tmp_path: Path, is_there: bool) -> None:
    record = ended.run._replace(topics=["test.7.0/caches"])
    if is_there:
        (tmp_path / "store").mkdir()
        topic = Topic("test.7.0", "caches.0.", "n1")
        barrier.say(str(tmp_path / "store"), topic, "answer", "{}", True)
    outcome = release.run(ended._replace(run=record), release.Options())
    assert [type(error) for error in outcome.degraded] == ([] if is_there else [StoreFailed])
    assert runs.load(ended.paths.state, 7) is None
    if is_there:
        assert os.listdir(tmp_path / "store" / barrier.DIRECTORY) == []
    ended.store.close()


def test_what_is_held_is_an_error_of_the_steps(ended: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_: object) -> None:
        raise OSError(16, "Device or resource busy")

    monkeypatch.setattr(run_end, "remove_tree", busy)
    outcome = release.run(ended, release.Options())
    assert [type(error) for error in outcome.degraded] == [run_end.WorkspaceBusy]
    assert runs.load(ended.paths.state, 7) == ended.run
