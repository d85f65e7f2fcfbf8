"""The validator's answers are checked: whoever wrote what it parses may control it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.lib.cache_files import NUMBA_BASE, numba_files
from warmstart.errors import WarmstartError
from warmstart.host.deadline import after
from warmstart.host.identity import Identity, WorkerSilent
from warmstart.profiles import judge
from warmstart.profiles.client import judged
from warmstart.profiles.contract import Profile

# With this process's own identity the child is confined all the same.
VALIDATOR = Identity("me", os.getuid(), os.getgid())
OWN = Profile({}, {"*.bin": []}, relocation="relocatable", max_size=100, name="mine")
LIES: list[object] = [None, [], {}, "rm -rf /", ["a", "rm -rf /"], ["a", 1], ["b", None]]


@pytest.mark.parametrize(
    ("answers", "believed"),
    [
        *(([lie, ["b", None]], "validator-failed") for lie in LIES),
        ([["a", None], ["b", None]], None),
        ([["a", "incomplete"], ["b", None]], "incomplete"),
    ],
)
def test_only_known_answers_are_believed(
    stage_fd: int, monkeypatch: pytest.MonkeyPatch, answers: list[Any], believed: str | None
) -> None:
    def lie(*_: object) -> Iterator[tuple[str, str | None]]:
        yield from answers

    monkeypatch.setattr(judge, "judge", lie)
    asked = {"a": ["x"], "b": ["y"]}
    verdicts = dict(judged(VALIDATOR, "numba", stage_fd, asked, defined=(), deadline=after(60)))
    assert verdicts == {"a": believed, "b": None}


def test_entries_of_shipped_and_defined_profiles_are_judged_in_a_confined_child(stage: Path, stage_fd: int) -> None:
    files = numba_files(signatures=1)
    for name, content in {**files, "a.bin": b"x", "b.bin": b"x" * 101}.items():
        (stage / name).parent.mkdir(exist_ok=True)
        (stage / name).write_bytes(content)
    asked = {NUMBA_BASE: tuple(files)}
    assert dict(judged(VALIDATOR, "numba", stage_fd, asked, defined=(), deadline=after(60))) == {NUMBA_BASE: None}
    own = {"a.bin": ["a.bin"], "b.bin": ["b.bin"]}
    answer = judged(VALIDATOR, "mine", stage_fd, own, defined=[OWN], deadline=after(60))
    assert dict(answer) == {"a.bin": None, "b.bin": "too-large"}
    with pytest.raises(WarmstartError, match="there is no profile"):
        dict(judged(VALIDATOR, "none", stage_fd, own, defined=(), deadline=after(60)))


def hang(*_: object) -> Iterator[tuple[str, str | None]]:
    """Answer for the first entry, and for nothing else in time."""
    yield "a", None
    time.sleep(600)


@pytest.mark.real_time
def test_what_was_judged_before_the_deadline_stands(stage_fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judge, "judge", hang)
    verdicts = judged(VALIDATOR, "numba", stage_fd, {"a": ["x"], "b": ["y"]}, defined=(), deadline=after(5))
    assert next(verdicts) == ("a", None)
    with pytest.raises(WorkerSilent):
        next(verdicts)
