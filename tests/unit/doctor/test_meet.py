"""`warmstart doctor --meet`: two processes stand for two nodes, and find what is wrong between them."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.command_line import installed, run
from tests.support.entry_site import OsAs
from warmstart.cli import doctor
from warmstart.doctor import meet, probe
from warmstart.doctor.finding import Result
from warmstart.host import files
from warmstart.host.identity import Identity
from warmstart.policy.compiled import Policy
from warmstart.policy.current import current_policy


@pytest.fixture
def policy(tmp_path: Path) -> Policy:
    """Return a policy whose store belongs to whoever runs the tests."""
    found = current_policy(installed(tmp_path / "prefix")).policy
    (tmp_path / "store").mkdir()
    me = Identity("me", os.getuid(), os.getgid())
    return found._replace(paths=found.paths._replace(store=str(tmp_path / "store")), store_user=me)


def together(policy: Policy, other: Callable[[], Policy]) -> dict[str, Result]:
    """Meet with another process, for which `other` prepares things and returns its policy. Both find the same."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=lambda: there.send(meet.meet(other(), "k", 2, 20.0)))
    process.start()
    found = meet.meet(policy, "k", 2, 20.0)
    theirs = here.recv()
    assert [(r.check, r.found) for r in theirs if r.check != "meet.publishing"] == [
        (r.check, r.found) for r in found if r.check != "meet.publishing"
    ]
    process.join()
    assert os.listdir(policy.paths.store) == []
    return {result.check: result for result in found}


def a_minute_ahead(_directory: str, _name: str) -> float:
    """Stand for `probe.clock_ahead` on a node whose clock is behind."""
    return 60.0


def test_two_good_nodes(policy: Policy) -> None:
    """They exclude each other, see each other's files, and leave nothing behind."""
    found = together(policy, lambda: policy)
    assert {name: result.status for name, result in found.items()} == dict.fromkeys(
        ("meet.nodes", "meet.locks", "meet.publishing", "meet.clocks", "meet.ids"), "ok"
    )
    assert "4 attempts" in found["meet.locks"].found


def test_locks_that_hold_only_on_one_node(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each takes what the other holds."""
    monkeypatch.setattr(files, "try_flock", lambda *_, **__: True)
    found = together(policy, lambda: policy)["meet.locks"]
    assert (found.status, "do not exclude" in found.found) == ("wrong", True)


def test_locks_that_do_not_work(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reason is that of the file system."""

    def fail(*_: object, **__: object) -> bool:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(files, "try_flock", fail)
    found = together(policy, lambda: policy)["meet.locks"]
    assert (found.status, found.found) == ("wrong", "flock(2) in the store fails: No locks available")


def test_clocks_and_ids_that_differ(policy: Policy) -> None:
    """By how much, and where."""

    def other() -> Policy:
        pytest.MonkeyPatch().setattr(probe, "clock_ahead", a_minute_ahead)  # in this process, which ends
        return policy._replace(import_user=policy.import_user._replace(uid=4712))

    found = together(policy, other)
    assert (found["meet.clocks"].status, "60.0 s ahead" in found["meet.clocks"].found) == ("wrong", True)
    assert (found["meet.ids"].status, "import_user is" in found["meet.ids"].found) == ("critical", True)


def test_nobody_else_comes(policy: Policy) -> None:
    """Who came is said; nothing is left."""
    (found,) = meet.meet(policy, "k", 2, 0.1)
    assert (found.check, found.status) == ("meet.nodes", "unknown")
    assert found.found.startswith("1 of 2 nodes came within")
    assert os.listdir(policy.paths.store) == []


@pytest.mark.parametrize(
    ("variable", "options", "expected"), [("4", (), 4), ("1", (), 2), ("", (), 2), ("4", ("--nodes", "3"), 3)]
)
def test_how_many_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, options: tuple[str, ...], expected: int
) -> None:
    """Those of the Slurm job, or as many as are named; and all results are printed."""
    seen = []

    def meet_them(_policy: Policy, _key: str, nodes: int) -> list[Result]:
        seen.append(nodes)
        return [Result("meet.nodes", "ok", "met", "")]

    monkeypatch.setattr(meet, "meet", meet_them)
    monkeypatch.setattr(doctor, "os", OsAs(0))
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", variable)
    result = run(installed(tmp_path), "doctor", "--meet", "k", *options)
    assert (result.exit_code, seen, "meet.nodes" in result.stdout) == (0, [expected], True)


def test_a_key_is_a_name(tmp_path: Path) -> None:
    """It becomes a part of a path."""
    for key in ("../x", "", "a b"):
        assert run(installed(tmp_path), "doctor", "--meet", key).exit_code == 3
