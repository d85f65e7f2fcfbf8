"""What doctor says of enroot's hook, and of a node that cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lib.runs import a_policy
from warmstart.doctor.finding import ADVICE, OK, WRONG, check, run
from warmstart.doctor.node import Node
from warmstart.paths import Installation
from warmstart.wings.ready_roots import checks, trial
from warmstart.wings.ready_roots.trial import Tried

# As far as 4.1 concerns the hook.
RUNTIME = """root="${ENROOT_RUNTIME_PATH}/overlay"
bash -c 'runtime::_start "$@"' "${config}" "${rootfs}" "$@"
"""


@pytest.fixture
def enroot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the functions of an enroot that jobs have, with the hook."""
    for name in ("bin", "lib/enroot", "hooks.d"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("bin/enroot", f"hooks.d/{checks.HOOK}"):
        (tmp_path / name).touch(0o755)
    monkeypatch.setattr(checks, "PROGRAMS", str(tmp_path / "bin"))
    runtime = tmp_path / "lib/enroot/runtime.sh"
    runtime.write_text(RUNTIME)
    return runtime


def of_hook(tmp_path: Path) -> tuple[str, str]:
    where = str(tmp_path)
    (found,) = run([check("")(lambda prefix: checks.hook(Installation(prefix), where))], f"{where}/prefix")
    return found.status, found.found


def test_the_hook_is_the_first_of_all(tmp_path: Path, enroot: Path) -> None:
    """What an earlier one writes into the root would be lost."""
    hooks = tmp_path / "hooks.d"
    for name in ("10-shadow.sh", "00-notes.txt"):
        (hooks / name).touch()
    assert of_hook(tmp_path)[0] == OK
    (hooks / "01-site.sh").touch()
    status, text = of_hook(tmp_path)
    assert (status, "01-site.sh runs before" in text) == (WRONG, True)
    (hooks / checks.HOOK).unlink()
    assert of_hook(tmp_path)[0] == ADVICE


@pytest.mark.report
def test_a_hook_of_another_release_is_told(tmp_path: Path) -> None:
    """It was copied once, and an upgrade replaces no copy."""
    for place, text in (("prefix/share/warmstart/enroot", "new"), ("hooks.d", "old")):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / checks.HOOK).write_text(text)
        (tmp_path / place / checks.HOOK).chmod(0o755)
    status, text = of_hook(tmp_path)
    assert (status, "another release or installation" in text) == (ADVICE, True)


@pytest.mark.report
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("runtime::_start", "runtime::_begin"),
        ('"${config}" "${rootfs}"', '"${rootfs}" "${config}"'),
        ("PATH}/overlay", "PATH}/image"),
    ],
    ids=["another function", "another order", "another root"],
)
def test_an_enroot_that_the_hook_does_not_know_is_told(tmp_path: Path, enroot: Path, before: str, after: str) -> None:
    """The hook leaves its containers what they are, and says nothing."""
    enroot.write_text(RUNTIME.replace(before, after))
    status, text = of_hook(tmp_path)
    assert (status, str(enroot) in text) == (WRONG, True)


@pytest.mark.report
def test_the_hook_has_the_words_that_are_looked_for() -> None:
    """In enroot's functions and in the hook they are the same."""
    hook = Path("hooks/warmstart/wings/ready_roots/enroot", f"{checks.HOOK}.in").read_text()
    assert """!= 'runtime::_start "$@"' ]""" in hook
    assert "${words[number + 2]}" in hook
    assert '"$ENROOT_RUNTIME_PATH/overlay" ]' in hook
    assert [word in RUNTIME for word in checks.WORDS] == [True, True]


@pytest.mark.parametrize(
    ("tried", "status", "words"),
    [
        (Tried("Invalid argument", "Invalid argument"), WRONG, "Invalid argument"),
        (Tried("Operation not supported", ""), ADVICE, "lies in memory"),
    ],
)
def test_a_node_that_cannot_is_told_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tried: Tried, status: str, words: str
) -> None:
    monkeypatch.setattr(checks, "ENROOT", str(tmp_path))
    monkeypatch.setattr(trial, "tried", lambda _: tried)
    policy = a_policy(tmp_path)
    policy = policy._replace(paths=policy.paths._replace(shelf="/usr"))
    found, *_ = run([checks.ready_roots], Node(Installation(str(tmp_path)), policy))
    assert (found.status, words in found.found) == (status, True)
    none = policy._replace(paths=policy.paths._replace(shelf=None))
    assert run([checks.ready_roots], Node(Installation(str(tmp_path)), none)) == []
