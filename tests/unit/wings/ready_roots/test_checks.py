"""What doctor says of enroot's hook, and of a node that cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lib.runs import a_policy
from warmstart.doctor.finding import ADVICE, OK, WRONG
from warmstart.doctor.node import Node
from warmstart.paths import Installation
from warmstart.wings.ready_roots import checks, trial
from warmstart.wings.ready_roots.trial import Tried


def node(tmp_path: Path, shelf: str | None) -> Node:
    """Return a node with or without a shelf."""
    policy = a_policy(tmp_path)
    return Node(Installation(str(tmp_path)), policy._replace(paths=policy.paths._replace(shelf=shelf)))


def test_the_hook_is_the_first_of_all(tmp_path: Path, enroot: Path) -> None:
    """What an earlier one writes into the root would be lost."""
    enroot.write_text(RUNTIME)
    hooks, installation = tmp_path / "hooks.d", Installation(str(tmp_path / "prefix"))
    (hooks / checks.HOOK).unlink()
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


# As far as 4.1 concerns the hook.
RUNTIME = """root="${ENROOT_RUNTIME_PATH}/overlay"
bash -c 'runtime::_start "$@"' "${config}" "${rootfs}" "$@"
"""


@pytest.fixture
def enroot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the functions of an enroot that jobs have, with the hook; to be written."""
    for name in ("bin", "lib/enroot", "hooks.d"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("bin/enroot", f"hooks.d/{checks.HOOK}"):
        (tmp_path / name).touch(0o755)
    monkeypatch.setattr(checks, "PROGRAMS", str(tmp_path / "bin"))
    return tmp_path / "lib/enroot/runtime.sh"


@pytest.mark.report
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", ""),
        ("runtime::_start", "runtime::_begin"),
        ('"${config}" "${rootfs}"', '"${rootfs}" "${config}"'),
        ("PATH}/overlay", "PATH}/image"),
    ],
    ids=["4.1", "another function", "another order", "another root"],
)
def test_an_enroot_that_the_hook_does_not_know_is_told(tmp_path: Path, enroot: Path, before: str, after: str) -> None:
    """The hook leaves its containers what they are, and says nothing."""
    enroot.write_text(RUNTIME.replace(before, after))
    (found,) = checks.hook(Installation(str(tmp_path)), str(tmp_path))
    assert (found.status, str(enroot) in found.found) == ((WRONG, True) if before else (OK, False))


@pytest.mark.report
def test_the_hook_has_the_words_that_are_looked_for() -> None:
    """In enroot's functions and in the hook they are the same."""
    hook = Path("hooks/warmstart/wings/ready_roots/enroot", f"{checks.HOOK}.in").read_text()
    assert """!= 'runtime::_start "$@"' ]""" in hook
    assert "${words[number + 2]}" in hook
    assert '"$ENROOT_RUNTIME_PATH/overlay" ]' in hook
    assert [word in RUNTIME for word in checks.WORDS] == [True, True]


def test_a_node_that_cannot_is_told_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By what the trial met; memory in place of the disk is advice."""
    (nothing,) = checks.ready_roots(node(tmp_path, None))
    assert nothing.status == OK
    monkeypatch.setattr(checks, "ENROOT", str(tmp_path))
    monkeypatch.setattr(trial, "tried", lambda _: Tried("Invalid argument", "Invalid argument"))
    (found,) = checks.ready_roots(node(tmp_path, "/usr"))
    assert (found.status, "Invalid argument" in found.found) == (WRONG, True)
    monkeypatch.setattr(trial, "tried", lambda _: Tried("Operation not supported", ""))
    found, _ = checks.ready_roots(node(tmp_path, "/usr"))
    assert (found.status, "lies in memory" in found.found) == (ADVICE, True)
