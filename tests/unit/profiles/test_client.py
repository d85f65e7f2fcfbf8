"""The validator's answers are checked: whoever wrote what it parses may control it."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from tests.lib.cache_files import NUMBA_BASE, numba_files
from tests.lib.worker_calls import put_in_place
from warmstart.errors import WarmstartError
from warmstart.host.deadline import after
from warmstart.host.identity import Identity, WorkerSilent
from warmstart.profiles import judge
from warmstart.profiles.client import Validator
from warmstart.profiles.contract import Profile
from warmstart.profiles.judge import Verdicts

# With this process's own identity the child is confined all the same.
VALIDATOR = Validator(Identity("me", os.getuid(), os.getgid()))
ANSWER = "WARMSTART_TEST_ANSWER"
OWN = Profile({}, {"*.bin": []}, relocation="relocatable", max_size=100, name="mine")
FAILED = {"a": "validator-failed", "b": "validator-failed"}
LIES: list[object] = [None, [], {}, {"a": "rm -rf /"}, {"a": 1}, {"a": ["incomplete"]}]


def lie(profile_name: str, stage: int, entries: dict[str, list[str]], defined: list[Profile]) -> Verdicts:
    answer: Any = json.loads(os.environ[ANSWER])
    return answer  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("answer", "believed"),
    [
        *((told, FAILED) for told in LIES),
        ({"a": None, "b": "incomplete", "c": None}, {"a": None, "b": "incomplete"}),
    ],
)
def test_only_known_answers_for_the_asked_entries_are_believed(
    stage_fd: int, monkeypatch: pytest.MonkeyPatch, answer: object, believed: Verdicts
) -> None:
    put_in_place(monkeypatch, judge, "judge", lie)
    monkeypatch.setenv(ANSWER, json.dumps(answer))
    asked = {"a": ["x"], "b": ["y"]}
    assert dict(VALIDATOR.judge("numba", stage_fd, asked, defined=(), deadline=after(60))) == believed


def test_entries_of_shipped_and_defined_profiles_are_judged_in_a_confined_child(stage: Path, stage_fd: int) -> None:
    files = numba_files(signatures=1)
    for name, content in {**files, "a.bin": b"x", "b.bin": b"x" * 101}.items():
        (stage / name).parent.mkdir(exist_ok=True)
        (stage / name).write_bytes(content)
    asked = {NUMBA_BASE: tuple(files)}
    assert dict(VALIDATOR.judge("numba", stage_fd, asked, defined=(), deadline=after(60))) == {NUMBA_BASE: None}
    own = {"a.bin": ["a.bin"], "b.bin": ["b.bin"]}
    answer = VALIDATOR.judge("mine", stage_fd, own, defined=[OWN], deadline=after(60))
    assert dict(answer) == {"a.bin": None, "b.bin": "too-large"}
    with pytest.raises(WarmstartError, match="there is no profile"):
        dict(VALIDATOR.judge("none", stage_fd, own, defined=(), deadline=after(60)))


def hang(profile_name: str, stage: int, entries: dict[str, list[str]], defined: list[Profile]) -> Verdicts:
    """Answer for `a`, and for nothing else in time."""
    if [*entries] != ["a"]:
        time.sleep(600)
    return dict.fromkeys(entries)


@pytest.mark.real_time
def test_what_was_judged_before_the_deadline_stands(stage_fd: int, monkeypatch: pytest.MonkeyPatch) -> None:
    put_in_place(monkeypatch, judge, "judge", hang)
    verdicts = VALIDATOR.judge("numba", stage_fd, {"a": ["x"], "b": ["y"]}, defined=(), deadline=after(5))
    assert next(verdicts) == ("a", None)
    with pytest.raises(WorkerSilent):
        next(verdicts)
