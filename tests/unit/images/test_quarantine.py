"""The quarantine: what is shown of it, and that it does not grow for ever."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from warmstart.images import eviction, published

KIND = "x86_64.oci1"


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Return an empty store."""
    (tmp_path / "images").mkdir()
    return tmp_path


def damaged(store: Path, number: int, monkeypatch: pytest.MonkeyPatch, age: float = 0.0) -> str:
    """Quarantine a damaged image, so many seconds ago; return its name there."""
    name = f"{number:064x}.{KIND}"
    (store / "images" / f"{name}.sqsh").write_bytes(b"x" * 100)
    (store / "images" / f"{name}.json").write_text('{"reference": "reg.io/a:1"}')
    at = time.time_ns() - int(age * 1e9)
    monkeypatch.setattr(time, "time_ns", lambda: at)
    assert published.quarantine(str(store), name, f"reason {number}")
    monkeypatch.undo()
    return f"{name}.{at}"


def test_shows_what_lies_there(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest first, with its reason and what it was to be; nothing is no error."""
    assert eviction.quarantined(str(store)) == []
    younger, older = damaged(store, 1, monkeypatch), damaged(store, 2, monkeypatch, 100.0)
    found = eviction.quarantined(str(store))
    assert [entry.name for entry in found] == [older, younger]
    assert [entry.reason for entry in found] == ["reason 2", "reason 1"]
    assert found[0].reference == "reg.io/a:1"
    assert found[0].bytes > 100
    assert os.path.exists(found[0].path)


def test_empties_what_is_old_and_what_is_too_much(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two weeks, and the last eight; all files of what goes, none of what stays, and nothing in its lease."""
    old = damaged(store, 100, monkeypatch, eviction.RETENTION_S + 60)
    names = [damaged(store, number, monkeypatch, 1000.0 - number) for number in range(eviction.MOST + 2)]
    assert eviction.empty(str(store), time.time(), eviction.RETENTION_S + 3600) == []
    gone = eviction.empty(str(store), time.time(), 0.0)
    assert sorted(gone) == sorted([old, *names[:2]])
    left = {name.rpartition(".")[0] for name in os.listdir(store / "images" / "quarantine")}
    assert left == set(names[2:])
    assert eviction.empty(str(store), time.time(), 0.0) == []
    assert sorted(eviction.empty(str(store), time.time() + eviction.RETENTION_S + 2000, 0.0)) == sorted(names[2:])
    assert os.listdir(store / "images" / "quarantine") == []


def test_what_a_dead_mover_left_goes_too(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An image without its reason is shown and goes in its time; what is nobody's stays alone."""
    name = damaged(store, 1, monkeypatch, eviction.RETENTION_S + 60)
    folder = store / "images" / "quarantine"
    (folder / f"{name}.reason").unlink()
    (folder / "notes.txt").touch()
    assert [entry.reason for entry in eviction.quarantined(str(store))] == [""]
    assert eviction.empty(str(store), time.time(), 0.0) == [name]
    assert os.listdir(folder) == ["notes.txt"]
