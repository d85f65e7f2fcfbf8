"""The validator's answers are checked: whoever wrote what it parses may control it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
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
from warmstart.profiles.defined import DefinedProfile
from warmstart.profiles.judge import Verdicts

ME = Identity("me", os.getuid(), os.getgid())
Ask = Callable[[object], Verdicts]
ANSWER = "WARMSTART_TEST_ANSWER"
GENERATED = DefinedProfile("mine", {}, "relocatable", ("image",), ("*.bin",), (), (), {}, 100)


def lie(profile_name: str, stage: int, entries: dict[str, list[str]], defined: list[DefinedProfile]) -> Verdicts:
    """Answer what the test says."""
    answer: Any = json.loads(os.environ[ANSWER])
    return answer  # type: ignore[no-any-return]


@pytest.fixture
def validator() -> Validator:
    """Return a validator with this process's own identity: the child is confined all the same."""
    return Validator(ME)


@pytest.fixture
def lied(validator: Validator, stage_fd: int, monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Give a function that asks for `a` and `b` a validator that answers something."""
    put_in_place(monkeypatch, judge, "judge", lie)

    def ask(answer: object) -> Verdicts:
        monkeypatch.setenv(ANSWER, json.dumps(answer))
        return dict(validator.judge("numba", stage_fd, {"a": ["x"], "b": ["y"]}, defined=(), deadline=after(5)))

    return ask


@pytest.mark.parametrize(
    "answer", [None, [], {}, {"a": "rm -rf /"}, {"a": 1}, {"a": True}, {"a": ["incomplete"]}, {"c": None}]
)
def test_an_answer_out_of_form_is_not_believed(lied: Ask, answer: object) -> None:
    """Only a valid entry's null and the known reasons count."""
    assert lied(answer) == {"a": "validator-failed", "b": "validator-failed"}


def test_an_answer_in_form_is_taken_for_the_asked_entries_only(lied: Ask) -> None:
    """The parent's list of entries decides, not the child's."""
    assert lied({"a": None, "b": "incomplete", "c": None}) == {"a": None, "b": "incomplete"}


def test_entries_are_judged_in_a_confined_child(validator: Validator, stage: Path, stage_fd: int) -> None:
    """A built-in profile's entry, and one of a profile that the policy defines."""
    files = numba_files(signatures=1)
    for name, content in {**files, "a.bin": b"x", "b.bin": b"x" * 101}.items():
        (stage / name).parent.mkdir(exist_ok=True)
        (stage / name).write_bytes(content)
    asked = {NUMBA_BASE: tuple(files)}
    assert dict(validator.judge("numba", stage_fd, asked, defined=(), deadline=after(10))) == {NUMBA_BASE: None}
    own = {"a.bin": ["a.bin"], "b.bin": ["b.bin"]}
    answer = validator.judge("mine", stage_fd, own, defined=[GENERATED], deadline=after(10))
    assert dict(answer) == {"a.bin": None, "b.bin": "too-large"}


def test_a_profile_that_is_not_there_is_an_error(validator: Validator, stage_fd: int) -> None:
    """It says so, with its code."""
    with pytest.raises(WarmstartError, match="there is no profile"):
        dict(validator.judge("none", stage_fd, {"a": ["x"]}, defined=(), deadline=after(5)))


def hang(profile_name: str, stage: int, entries: dict[str, list[str]], defined: list[DefinedProfile]) -> Verdicts:
    """Answer for `a`, and for nothing else in time."""
    if [*entries] != ["a"]:
        time.sleep(600)
    return dict.fromkeys(entries)


@pytest.mark.timed
def test_what_was_judged_before_the_deadline_stands(
    validator: Validator, stage_fd: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An entry that takes all of the time costs the ones before it nothing."""
    put_in_place(monkeypatch, judge, "judge", hang)
    verdicts = validator.judge("numba", stage_fd, {"a": ["x"], "b": ["y"]}, defined=(), deadline=after(3))
    assert next(verdicts) == ("a", None)
    with pytest.raises(WorkerSilent):
        next(verdicts)
