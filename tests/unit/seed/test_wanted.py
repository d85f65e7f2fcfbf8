"""Bundles that a node fetches off the clock of jobs: whose turn it is, and when they are tried and given up."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.support.bundles import ASKER
from warmstart.host import detached
from warmstart.host.files import opened_dir
from warmstart.paths import NodePaths
from warmstart.seed import wanted
from warmstart.seed.wanted import FIRST_BACKOFF_S, KEPT_S, MOST_PER_SCOPE, SUFFIX, Wanted


def a_wanted(number: int, scope: str = "user-1", **changes: object) -> Wanted:
    """Return a bundle that was wanted `number` seconds after the first."""
    item = Wanted(f"{number:064x}", 10, scope, "numba", "ns", f"b{number}", ASKER, 1000.0 + number)
    return item._replace(**changes)  # type: ignore[arg-type]


def add(directory: Path, *items: Wanted) -> list[bool]:
    """Have bundles fetched; return which were taken."""
    with opened_dir(str(directory)) as fd:
        return [wanted.add(fd, item) for item in items]


@pytest.mark.threat(41)
def test_a_scope_has_a_bound(tmp_path: Path) -> None:
    """One that wants too many does not keep others from wanting."""
    many = [a_wanted(number) for number in range(MOST_PER_SCOPE + 1)]
    assert add(tmp_path, *many) == [True] * MOST_PER_SCOPE + [False]
    assert add(tmp_path, a_wanted(99, "user-2")) == [True]
    assert [item.bundle for item in wanted.due(str(tmp_path))][-2:] == ["b15", "b99"]


def test_an_attempt_comes_later_each_time(tmp_path: Path) -> None:
    """A clock that was set back delays none for ever; what is damaged is not tried."""
    now = time.time()
    for attempts, tried, is_due in ((0, 0.0, True), (1, now - 1, False), (1, now - FIRST_BACKOFF_S - 1, True),
                                    (2, now - FIRST_BACKOFF_S - 1, False), (1, now + 9999, True)):  # fmt: skip
        assert a_wanted(1, attempts=attempts, tried=tried).is_due() is is_due
    (tmp_path / f"ab{SUFFIX}").write_bytes(b"{")
    assert wanted.due(str(tmp_path)) == wanted.due(str(tmp_path / "none")) == []


def test_what_was_not_tried_for_a_day_is_forgotten(tmp_path: Path) -> None:
    """Damaged or not."""
    add(tmp_path, a_wanted(1), a_wanted(2))
    (tmp_path / f"ab{SUFFIX}").write_bytes(b"{")
    now = time.time()
    for name in os.listdir(tmp_path):
        if "0002" not in name:
            os.utime(tmp_path / name, (now - KEPT_S,) * 2)
    with opened_dir(str(tmp_path)) as fd:
        wanted.forget_old(fd, now)
        assert not wanted.is_wanted("ab", fd)
    assert [item.bundle for item in wanted.due(str(tmp_path))] == ["b2"]


def test_the_program_is_started_for_what_is_due(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And for nothing else."""
    started: list[list[str]] = []
    monkeypatch.setattr(detached, "start", started.append)
    paths = NodePaths(str(tmp_path / "n1"), "/nowhere")
    Path(paths.bundles).mkdir(parents=True)
    wanted.start_due(paths)
    assert started == []
    add(Path(paths.bundles), a_wanted(1))
    wanted.start_due(paths)
    assert started == [["/nowhere/background", "fetches", "n1"]]
