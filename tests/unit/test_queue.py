"""Items as files: whose they are, when they are tried, and when they are given up."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmstart import queue as queues
from warmstart.host import detached
from warmstart.paths import NodePaths
from warmstart.queue import KEPT_S, Item, Kind, Queue


class Wish(NamedTuple):
    """What is to be done."""

    text: str
    number: float = 0.0


KIND = Kind("wishes", most=3, backoff_s=60.0)


@pytest.fixture
def paths(tmp_path: Path) -> NodePaths:
    (tmp_path / "n1").mkdir()
    return NodePaths(str(tmp_path / "n1"), str(tmp_path / "n1"), "/nowhere")


@pytest.fixture
def queue(paths: NodePaths) -> Queue:
    """Return a kind's queue; there are none yet."""
    return Queue(paths, KIND)


def put(queue: Queue, key: str, *, asked: float = 0, tried: float = 0, attempts: int = 0) -> Item:
    """Write an item that was asked for then, or tried; times are in seconds before now."""
    due = time.time() - tried + queue.kind.backoff_s * 2 ** (attempts - 1) if attempts else time.time() - asked
    item = Item("1", int(due), attempts, key)
    queue.put(item, Wish(key))
    return item


def test_what_is_asked_for_waits_until_it_is_dropped(queue: Queue) -> None:
    assert queue.all() == queue.due() == []
    queue.drop("a")
    assert queue.add("1000", "a", Wish("x", 1.5))
    (item,) = queue.due()
    assert (item.owner, item.attempts, item.key) == ("1000", 0, "a")
    assert queue.read(item, Wish) == Wish("x", 1.5)
    paths = (queue.directory, f"{queue.directory}/{item.name}")
    assert [stat.S_IMODE(os.stat(path).st_mode) for path in paths] == [0o700, 0o600]
    for _ in range(2):
        queue.drop("a")
    assert os.listdir(queue.directory) == []
    assert queue.read(item, Wish) is None


def test_an_owner_has_a_bound(queue: Queue) -> None:
    """One who wants too much does not keep others from wanting; the bound is counted without reading."""
    assert [queue.add("1", key, Wish("")) for key in "abcd"] == [True, True, True, False]
    Path(queue.directory, queue.all()[0].name).write_bytes(b"{")
    assert queue.add("2", "e", Wish(""))
    assert not queue.add("1", "f", Wish(""))


def test_an_attempt_comes_later_each_time(queue: Queue) -> None:
    cases = {
        "never": (0, 0),
        "now": (1, 1),
        "again": (1, 61),
        "not-yet": (2, 61),
        "later": (2, 121),
        "future": (1, -999),
        "set-back": (1, -2 * KEPT_S),
    }
    for key, (attempts, tried) in cases.items():
        put(queue, key, attempts=attempts, tried=tried)
    assert {item.key for item in queue.due()} == {"never", "again", "later", "set-back"}


def test_a_begun_attempt_is_counted(queue: Queue) -> None:
    item = put(queue, "a", asked=100)
    inode = os.stat(f"{queue.directory}/{item.name}").st_ino
    begun = queue.begin(item)
    assert begun
    assert queue.all() == [begun]
    assert os.stat(f"{queue.directory}/{begun.name}").st_ino == inode
    assert (begun.attempts, begun.due - int(time.time() + 60) in (0, -1)) == (1, True)
    assert queue.due() == []
    assert queue.begin(item) is None


def test_what_failed_often_waits_a_day_at_most_and_is_not_due_at_once(queue: Queue) -> None:
    begun = queue.begin(put(queue, "a", attempts=40))
    assert begun
    assert begun.due - time.time() <= KEPT_S
    assert queue.due() == []


def test_those_of_fewer_attempts_come_first(queue: Queue) -> None:
    put(queue, "c", attempts=1, tried=5000)
    put(queue, "b", asked=10)
    put(queue, "a", asked=20)
    assert [item.key for item in queue.due()] == ["a", "b", "c"]


def test_a_key_is_there_once(queue: Queue) -> None:
    """Whoever writes it again replaces it. A writer that died in between leaves two: that of more attempts counts."""
    put(queue, "a", attempts=1, tried=5)
    first = put(queue, "a")
    assert queue.all() == [first]
    copy = first._replace(attempts=2)
    Path(queue.directory, copy.name).write_bytes(b"{}")
    assert queue.all() == [copy]
    assert queue.find("a") == copy
    assert queue.find("b") is None
    queue.drop("a")
    assert os.listdir(queue.directory) == []


def test_what_was_not_tried_for_a_day_is_forgotten(queue: Queue, paths: NodePaths) -> None:
    for key, asked, attempts in (("a", 10, 0), ("b", KEPT_S + 9, 0), ("c", KEPT_S - 9, 3), ("d", KEPT_S + 9, 3)):
        put(queue, key, asked=asked, tried=asked, attempts=attempts)
    patient = Queue(paths, Kind("patient"))  # who bounds them ends them
    put(patient, "e", asked=9 * KEPT_S)
    for kind in (queue, patient):
        kind.forget_old()
    assert [item.key for item in queue.all()] == ["a", "c"]
    assert len(patient.all()) == 1


def test_the_program_is_started_for_what_is_due(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(detached, "start", lambda argv, **_: started.append(argv))
    put(queue, "a", attempts=1)
    queue.start_due()
    assert started == []
    put(queue, "a")
    queue.start_due()
    assert started == [["/nowhere/background", "wishes", "n1"]]


def test_nothing_is_started_beside_a_process_at_work(
    paths: NodePaths, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    monkeypatch.setattr(detached, "start", lambda _argv, unit: started.append(unit))
    queue.kind = KIND._replace(unit="wish@{}.service")
    put(queue, "a")
    with queues.at_work(paths, KIND.name):
        assert queues.is_at_work(paths, KIND.name)
        queue.start_due()
        assert started == []
    queue.start_due()
    assert started == ["wish@n1.service"]


def test_an_attempt_may_be_hastened(queue: Queue) -> None:
    queue.hasten(put(queue, "a", attempts=2))
    (item,) = queue.due()
    assert item.attempts == 2
    queue.drop("a")
    queue.hasten(item)
    assert queue.all() == []


def test_foreign_files_are_no_items(queue: Queue) -> None:
    item = put(queue, "a")
    for name in ("a", "1,2,a", "1,x,0,a", f".{item.name}.7.tmp", "1,1,1,"):
        Path(queue.directory, name).touch()
    assert queue.all() == [item]


@given(st.binary(max_size=60) | st.sampled_from([b"{}", b"[]", b'{"text": 1}', b'{"text": "x", "number": "y"}']))
def test_a_damaged_one_says_nothing(queue: Queue, content: bytes) -> None:
    item = put(queue, "a")
    Path(queue.directory, item.name).write_bytes(content)
    assert queue.read(item, Wish) is None
