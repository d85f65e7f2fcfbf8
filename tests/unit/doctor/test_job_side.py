"""What a job's user must be able to do. tests/node/test_mistakes.py tries it as another uid."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.lib.command_line import installed
from tests.lib.node import OsAs
from warmstart.doctor import job_side
from warmstart.doctor.finding import run
from warmstart.doctor.job_side import Refused
from warmstart.doctor.node import Node
from warmstart.policy.current import current_policy


@pytest.fixture
def here(tmp_path: Path) -> Node:
    """Return a node whose store and workspace are to be made."""
    site = installed(tmp_path / "prefix")
    policy = current_policy(site, keep=True).policy
    paths = policy.paths._replace(workspace=str(tmp_path / "a/workspace"), store=str(tmp_path / "store"))
    return Node(site, policy._replace(paths=paths))


def statuses(node: Node, monkeypatch: pytest.MonkeyPatch, refused: Refused | None, uid: int = 0) -> dict[str, str]:
    """Return the findings' statuses, where the attempts of the job's user have that outcome."""

    class Told:
        def __init__(self, _: object, *, rooms: object) -> None:
            pass

        def __enter__(self) -> Told:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def run(self, *_: object) -> Refused | None:
            return refused

    monkeypatch.setattr(job_side, "Worker", Told)
    monkeypatch.setattr(job_side, "os", OsAs(uid))
    monkeypatch.setattr(job_side, "why_untried", lambda _: None)
    return {result.check: result.status for result in run(job_side.CHECKS, node)}


@pytest.mark.parametrize(
    ("refused", "expected"),
    [
        (None, ("ok", "ok", "ok")),
        (Refused("/x", 0o700, 5), ("critical", "wrong", "wrong")),
        (Refused("/x", 0o750, 5), ("advice", "advice", "advice")),
    ],
)
def test_what_is_refused_is_told(
    here: Node, monkeypatch: pytest.MonkeyPatch, refused: Refused | None, expected: tuple[str, str, str]
) -> None:
    """A directory for the members of a group may be meant so."""
    found = statuses(here, monkeypatch, refused)
    assert (found["job.programs"], found["job.images"], found["job.execution"]) == expected


def test_only_root_can_try_it(here: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another user learns that."""
    assert statuses(here, monkeypatch, None, uid=7)["job.programs"] == "unknown"


def test_a_file_system_without_execution(here: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the nearest directory there is."""
    asked: list[str] = []

    def noexec(path: str) -> SimpleNamespace:
        asked.append(path)
        return SimpleNamespace(f_flag=os.ST_NOEXEC)

    monkeypatch.setattr(os, "statvfs", noexec)
    (found,) = job_side.execution(here)
    assert (found.status, asked) == ("wrong", [str(Path(here.policy.paths.workspace).parents[1])])


@pytest.mark.parametrize("function", [job_side.refused_image, lambda store: job_side.refused_program([f"{store}/x"])])
def test_nothing_is_refused_where_all_is_open_or_missing(here: Node, function: Callable[[str], Refused | None]) -> None:
    """A store without an image, and one with one."""
    store = Path(here.policy.paths.store)
    assert function(str(store)) is None
    (store / "images").mkdir(parents=True)
    assert function(str(store)) is None
    for name in ("images/x.sqsh", "x"):
        (store / name).touch(mode=0o755)
    assert function(str(store)) is None
