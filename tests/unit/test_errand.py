"""Errands as files: whose they are, when they are tried, and when they are given up."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmstart import errand
from warmstart.errand import KEPT_S, Errand, Errands, Kind
from warmstart.host import detached
from warmstart.paths import NodePaths


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
def errands(paths: NodePaths) -> Errands:
    """Return a kind's errands; there are none yet."""
    return Errands(paths, KIND)


def put(errands: Errands, key: str, *, asked: float = 0, tried: float = 0, attempts: int = 0) -> Errand:
    """Write an errand that was asked for then, or tried; times are in seconds before now."""
    due = time.time() - tried + errands.kind.backoff_s * 2 ** (attempts - 1) if attempts else time.time() - asked
    item = Errand("1", int(due), attempts, key)
    errands.put(item, Wish(key))
    return item


def test_what_is_asked_for_waits_until_it_is_dropped(errands: Errands) -> None:
    assert errands.all() == errands.due() == []
    errands.drop("a")
    assert errands.add("1000", "a", Wish("x", 1.5))
    (item,) = errands.due()
    assert (item.owner, item.attempts, item.key) == ("1000", 0, "a")
    assert errands.read(item, Wish) == Wish("x", 1.5)
    paths = (errands.directory, f"{errands.directory}/{item.name}")
    assert [stat.S_IMODE(os.stat(path).st_mode) for path in paths] == [0o700, 0o600]
    for _ in range(2):
        errands.drop("a")
    assert os.listdir(errands.directory) == []
    assert errands.read(item, Wish) is None


def test_an_owner_has_a_bound(errands: Errands) -> None:
    """One who wants too much does not keep others from wanting; the bound is counted without reading."""
    assert [errands.add("1", key, Wish("")) for key in "abcd"] == [True, True, True, False]
    Path(errands.directory, errands.all()[0].name).write_bytes(b"{")
    assert errands.add("2", "e", Wish(""))
    assert not errands.add("1", "f", Wish(""))


def test_an_attempt_comes_later_each_time(errands: Errands) -> None:
    cases = {
        "never": (0, 0),
        "now": (1, 1),
        "again": (1, 61),
        "not-yet": (2, 61),
        "later": (2, 121),
        "future": (1, -999),
    }
    for key, (attempts, tried) in cases.items():
        put(errands, key, attempts=attempts, tried=tried)
    assert {item.key for item in errands.due()} == {"never", "again", "later", "future"}


def test_a_begun_attempt_is_counted(errands: Errands) -> None:
    item = put(errands, "a", asked=100)
    inode = os.stat(f"{errands.directory}/{item.name}").st_ino
    begun = errands.begin(item)
    assert begun
    assert errands.all() == [begun]
    assert os.stat(f"{errands.directory}/{begun.name}").st_ino == inode
    assert (begun.attempts, begun.due - int(time.time() + 60) in (0, -1)) == (1, True)
    assert errands.due() == []
    assert errands.begin(item) is None


def test_those_of_fewer_attempts_come_first(errands: Errands) -> None:
    put(errands, "c", attempts=1, tried=5000)
    put(errands, "b", asked=10)
    put(errands, "a", asked=20)
    assert [item.key for item in errands.due()] == ["a", "b", "c"]


def test_a_key_is_there_once(errands: Errands) -> None:
    """Whoever writes it again replaces it. A writer that died in between leaves two: that of more attempts counts."""
    put(errands, "a", attempts=1, tried=5)
    first = put(errands, "a")
    assert errands.all() == [first]
    copy = first._replace(attempts=2)
    Path(errands.directory, copy.name).write_bytes(b"{}")
    assert errands.all() == [copy]
    assert errands.find("a") == copy
    assert errands.find("b") is None
    errands.drop("a")
    assert os.listdir(errands.directory) == []


def test_what_was_not_tried_for_a_day_is_forgotten(errands: Errands, paths: NodePaths) -> None:
    for key, asked, attempts in (("a", 10, 0), ("b", KEPT_S + 9, 0), ("c", KEPT_S - 9, 3), ("d", KEPT_S + 9, 3)):
        put(errands, key, asked=asked, tried=asked, attempts=attempts)
    patient = Errands(paths, Kind("patient"))
    put(patient, "e", asked=9 * KEPT_S)
    for kind in (errands, patient):
        kind.forget_old()
    assert [item.key for item in errands.all()] == ["a", "c"]
    assert len(patient.all()) == 1


def test_the_program_is_started_for_what_is_due(errands: Errands, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[list[str]] = []
    monkeypatch.setattr(detached, "start", lambda argv, **_: started.append(argv))
    put(errands, "a", attempts=1)
    errands.start_due()
    assert started == []
    put(errands, "a")
    errands.start_due()
    assert started == [["/nowhere/background", "wishes", "n1"]]


def test_nothing_is_started_beside_a_process_at_work(
    paths: NodePaths, errands: Errands, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    monkeypatch.setattr(detached, "start", lambda _argv, unit: started.append(unit))
    errands.kind = KIND._replace(unit="wish@{}.service")
    put(errands, "a")
    with errand.at_work(paths, KIND.name):
        assert errand.is_at_work(paths, KIND.name)
        errands.start_due()
        assert started == []
    errands.start_due()
    assert started == ["wish@n1.service"]


def test_an_attempt_may_be_hastened(errands: Errands) -> None:
    errands.hasten(put(errands, "a", attempts=2))
    (item,) = errands.due()
    assert item.attempts == 2
    errands.drop("a")
    errands.hasten(item)
    assert errands.all() == []


def test_foreign_files_are_no_errands(errands: Errands) -> None:
    item = put(errands, "a")
    for name in ("a", "1,2,a", "1,x,0,a", f".{item.name}.7.tmp", "1,1,1,"):
        Path(errands.directory, name).touch()
    assert errands.all() == [item]


@given(st.binary(max_size=60) | st.sampled_from([b"{}", b"[]", b'{"text": 1}', b'{"text": "x", "number": "y"}']))
def test_a_damaged_one_says_nothing(errands: Errands, content: bytes) -> None:
    item = put(errands, "a")
    Path(errands.directory, item.name).write_bytes(content)
    assert errands.read(item, Wish) is None
