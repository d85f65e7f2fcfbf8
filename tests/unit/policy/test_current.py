"""The policy in force, as people see it: the hooks' compiled form, or the site's files where those are newer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.support.runs import a_policy
from warmstart.paths import Installation
from warmstart.policy import compiled, load
from warmstart.policy.compiled import Policy
from warmstart.policy.current import current_policy, hint_for
from warmstart.policy.invalid import PolicyInvalid, PolicyUnreadable, Problem, invalid


class Place:
    """An installation whose compiled form is of the policy's file as it is."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.installation = Installation(str(root))
        self.policy = a_policy(root, site_label="compiled")
        for path in (self.installation.policy, self.installation.compiled_policy):
            os.makedirs(os.path.dirname(path), exist_ok=True)
        Path(self.installation.policy).write_text("version: 1\n")
        self.fresh: Policy | PolicyInvalid = self.policy._replace(site_label="fresh")
        self.write(compiled.stamp(self.installation.policy))
        monkeypatch.setattr(load, "compile_policy", self._compile)

    def write(self, stamp: compiled.Stamp) -> None:
        """Write the compiled form, as made of a file with this stamp."""
        path = Path(self.installation.compiled_policy)
        path.write_bytes(compiled.encode(self.policy._replace(signature=(stamp,))))
        path.chmod(0o600)

    def _compile(self, path: str, *, owners: set[int]) -> Policy:
        assert (path, owners) == (self.installation.policy, {0, os.geteuid()})
        if isinstance(self.fresh, PolicyInvalid):
            raise self.fresh
        return self.fresh


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Give an installation with both forms of its policy."""
    return Place(tmp_path, monkeypatch)


def test_the_hooks_own_form_is_what_counts(place: Place) -> None:
    """Nothing is compiled while it is current."""
    found = current_policy(place.installation)
    assert (found.policy.site_label, found.changed, found.problem) == ("compiled", False, None)
    assert found.origin == place.installation.compiled_policy


def test_newer_files_are_what_the_next_hook_uses(place: Place) -> None:
    """Nothing is written for it."""
    before = Path(place.installation.compiled_policy).read_bytes()
    Path(place.installation.policy).write_text("version: 1 # edited\n")
    found = current_policy(place.installation)
    assert (found.policy.site_label, found.origin, found.changed) == ("fresh", place.installation.policy, True)
    assert Path(place.installation.compiled_policy).read_bytes() == before


def test_newer_files_that_are_wrong_leave_the_last_good_policy(place: Place) -> None:
    """The problem is told beside it; without a last good one it is raised."""
    place.fresh = invalid([Problem("p", 1, 1, "wrong")])
    Path(place.installation.policy).write_text("version: 2\n")
    found = current_policy(place.installation)
    assert (found.policy.site_label, found.changed, found.problem) == ("compiled", True, place.fresh)
    os.unlink(place.installation.compiled_policy)
    with pytest.raises(PolicyInvalid):
        current_policy(place.installation)


def test_who_may_not_read_the_compiled_form_compiles_for_himself(place: Place) -> None:
    """That is no change of the policy; neither is it where the form is of another version."""
    for damage in (b"{", b"{}", b'{"made_by": "0"}'):
        Path(place.installation.compiled_policy).write_bytes(damage)
        found = current_policy(place.installation)
        assert (found.policy.site_label, found.changed, found.problem) == ("fresh", False, None)


@pytest.mark.parametrize(("uid", "advice"), [(0, "write a policy"), (1000, "run the command as root")])
def test_advice_is_for_who_asks(monkeypatch: pytest.MonkeyPatch, uid: int, advice: str) -> None:
    """A user can't repair a policy; what is wrong with its text is the same for both."""
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    assert advice in hint_for(PolicyUnreadable(path="p", problem="q"))
    wrong = invalid([Problem("p", 1, 1, "wrong")])
    assert hint_for(wrong) == wrong.hint
