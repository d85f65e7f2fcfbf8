"""What doctor says of enroot's hook, and of a node that cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.runs import a_policy
from warmstart.doctor.finding import ADVICE, OK, WRONG
from warmstart.doctor.node import Node
from warmstart.paths import Installation
from warmstart.wings.ready_roots import checks, trial
from warmstart.wings.ready_roots.trial import Tried


def node(tmp_path: Path, shelf: str | None) -> Node:
    """Return a node with or without a shelf."""
    policy = a_policy(tmp_path)
    return Node(Installation(str(tmp_path)), policy._replace(paths=policy.paths._replace(shelf=shelf)))


def test_the_hook_is_the_first_of_all(tmp_path: Path) -> None:
    """What an earlier one writes into the root would be lost."""
    hooks, installation = tmp_path / "hooks.d", Installation(str(tmp_path / "prefix"))
    hooks.mkdir()
    (missing,) = checks.hook(installation, str(tmp_path))
    assert missing.status == ADVICE
    for name in ("10-shadow.sh", checks.HOOK, "00-notes.txt"):
        (hooks / name).touch()
    (hooks / checks.HOOK).chmod(0o755)
    (found,) = checks.hook(installation, str(tmp_path))
    assert found.status == OK
    (hooks / "01-site.sh").touch()
    (found,) = checks.hook(installation, str(tmp_path))
    assert (found.status, "01-site.sh runs before" in found.found) == (WRONG, True)


@pytest.mark.report
def test_a_hook_of_another_release_is_told(tmp_path: Path) -> None:
    """It was copied once, and an upgrade replaces no copy."""
    for place, text in (("prefix/share/warmstart/enroot", "new"), ("hooks.d", "old")):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / checks.HOOK).write_text(text)
        (tmp_path / place / checks.HOOK).chmod(0o755)
    (found,) = checks.hook(Installation(str(tmp_path / "prefix")), str(tmp_path))
    assert (found.status, "another release or installation" in found.found) == (ADVICE, True)


def test_a_node_that_cannot_is_told_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what the trial met; memory in place of the disk is advice."""
    (nothing,) = checks.ready_roots(node(tmp_path, None))
    assert nothing.status == OK
    monkeypatch.setattr(checks, "ENROOT", str(tmp_path))
    monkeypatch.setattr(trial, "tried", lambda _: Tried("Invalid argument", "Invalid argument"))
    (found,) = checks.ready_roots(node(tmp_path, "/shelf"))
    assert (found.status, "Invalid argument" in found.found) == (WRONG, True)
    monkeypatch.setattr(trial, "tried", lambda _: Tried("Operation not supported", ""))
    found, _ = checks.ready_roots(node(tmp_path, "/shelf"))
    assert (found.status, "lies in memory" in found.found) == (ADVICE, True)
