"""Journals that wait to be moved: whose hook is alive, and the events in them, whatever they hold."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.lib.journals import FIELDS, NO_PROCESS, left
from warmstart.audit import events as emitted
from warmstart.audit import pending
from warmstart.audit.journal import Journal
from warmstart.audit.line import Line
from warmstart.audit.pending import GRACE, PendingJournal
from warmstart.host.files import opened_dir

NAME = f"prolog-0a1b2c3d-{NO_PROCESS}.open"
GOOD = b'{"ts": 1.5, "event": "image.reused", "job_id": 7, "user": "a"}'


@pytest.fixture
def directory(journal_dir: str) -> Iterator[int]:
    """Give the open journal directory, with the path that `journal_dir` names."""
    os.mkdir(journal_dir, 0o700)
    with opened_dir(journal_dir) as fd:
        yield fd


def states(directory: int) -> dict[str, str]:
    """Return the state of each journal."""
    return {journal.name: journal.state for journal in pending.journals(directory)}


def test_a_journal_is_alive_while_its_hook_has_it_open(directory: int, journal_dir: str) -> None:
    """A finished one is done, and one of a process that is gone was killed."""
    journal = Journal(journal_dir, FIELDS)
    other = Path(journal_dir, NAME)
    other.touch()
    mine = f"prolog-0a1b2c3d-{os.getpid()}"
    assert states(directory) == {f"{mine}.open": "running", NAME: "killed"}
    journal.finish()
    assert states(directory) == {f"{mine}.done": "done", NAME: "killed"}


def test_a_pid_that_is_used_again_says_nothing(directory: int, journal_dir: str) -> None:
    """A live process without the journal open: it is left alone for a while, and not for ever."""
    journal = left(journal_dir, b"", f"prolog-0a1b2c3d-{os.getpid()}.open")
    assert states(directory) == {journal.name: "running"}
    then = time.time() - GRACE - 1
    os.utime(journal, (then, then))
    assert states(directory) == {journal.name: "killed"}


def test_the_one_written_last_is_at_the_end(directory: int, journal_dir: str) -> None:
    """Files of other names are no journals."""
    for name, when in (("b-1-1.done", 30), ("a-1-1.done", 10), ("a-1-2.done", 20), ("a-1.done", 1), ("x.open", 1)):
        os.utime(left(journal_dir, b"", name), (when, when))
    found = pending.journals(directory)
    assert [(one.hook, one.run_id, one.modified) for one in found] == [("a", "1", 10), ("a", "1", 20), ("b", "1", 30)]


def events_of(directory: int, journal_dir: str, content: bytes, state: str = "done") -> list[Line]:
    """Return the events of a journal with this content."""
    left(journal_dir, content, NAME)
    return pending.events(directory, PendingJournal(NAME, "prolog", "0a1b2c3d", state, 100.0))


def test_an_event_is_read_with_its_time_as_text(directory: int, journal_dir: str) -> None:
    """In the order in which they were written; blank lines are none."""
    found = events_of(directory, journal_dir, GOOD + b"\n\n" + GOOD + b"\n")
    assert found == [
        {"ts": "1970-01-01T00:00:01.500Z", "event": "image.reused", "job_id": 7, "user": "a"},
    ] * 2  # fmt: skip


@pytest.mark.parametrize(
    "damage",
    [b"\0\0\0", b"[]", b'{"event": "x"}', b'{"ts": 1}', b'{"ts": "1", "event": "x"}', b'{"ts": 1e99, "event": "x"}'],
)
def test_what_is_no_event_is_kept_as_damage(directory: int, journal_dir: str, damage: bytes) -> None:
    """With its text, and with who wrote the lines around it."""
    good, bad = events_of(directory, journal_dir, GOOD + b"\n" + damage)
    assert good["event"] == "image.reused"
    assert (bad["event"], bad["bytes"], bad["reason"]) == (emitted.JOURNAL_DAMAGED, len(damage), "not an event")
    assert (bad["hook"], bad["run_id"], bad["job_id"], bad["user"]) == ("prolog", "0a1b2c3d", 7, "a")


def test_a_killed_hook_is_said_to_have_crashed(directory: int, journal_dir: str) -> None:
    """Unless it had finished; nobody else has crashed."""
    finished = b'{"ts": 1, "event": "hook.finished"}'
    names = [
        [line["event"] for line in events_of(directory, journal_dir, content, state)]
        for content, state in ((GOOD, "killed"), (finished, "killed"), (GOOD, "running"), (GOOD, "done"))
    ]
    assert names == [["image.reused", "hook.crashed"], ["hook.finished"], ["image.reused"], ["image.reused"]]


def test_a_journal_that_is_too_long_says_what_is_missing(
    directory: int, journal_dir: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its beginning is read, and the rest counted."""
    monkeypatch.setattr(pending, "LONGEST_JOURNAL", len(GOOD) + 1)
    good, rest = events_of(directory, journal_dir, GOOD + b"\n" + b"x" * 50)
    assert good["event"] == "image.reused"
    assert (rest["event"], rest["bytes"], rest["reason"]) == (emitted.JOURNAL_DAMAGED, 50, "too long")


@given(st.lists(st.binary(max_size=30) | st.just(GOOD), max_size=5), st.sampled_from(["done", "killed"]))
def test_any_bytes_become_events(tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], state: str) -> None:
    """One for each line that is not blank, and one for a crash; all of them can be written down."""
    journal_dir = str(tmp_path_factory.getbasetemp() / "any-bytes")
    os.makedirs(journal_dir, exist_ok=True)
    content = b"\n".join(lines)
    with opened_dir(journal_dir) as directory:
        found = events_of(directory, journal_dir, content, state)
    expected = sum(bool(line.strip()) for line in content.split(b"\n")) + (state == "killed")
    assert len(found) == expected
    assert all(isinstance(line["event"], str) and isinstance(line["ts"], str) for line in found)
    json.dumps(found)
