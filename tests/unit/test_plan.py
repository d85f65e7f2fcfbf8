"""Which profiles a job has depends on where its node puts caches."""

from pathlib import Path

import pytest

from tests.unit.samples import a_job, a_policy
from warmstart import plan
from warmstart.entry.preview import preview
from warmstart.policy.match import Grant
from warmstart.profiles import numba, registry

GRANT = Grant(["docker://reg.example.com/a:1"], ["numba"], {}, "user", ["user-1-a"], "user-1-a", "")


@pytest.mark.parametrize(
    ("relocation", "constant_path", "used"),
    [
        ("relocatable", "none", True),
        ("relocatable", "spank", True),
        ("constant-path", "none", False),
        ("constant-path", "spank", True),
    ],
)
def test_profiles_bound_to_one_path_need_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, relocation: str, constant_path: str, used: bool
) -> None:
    """Where a node has no constant path they are left out, whoever asks for them."""
    profile = numba.PROFILE._replace(relocation=relocation)  # type: ignore[arg-type]
    monkeypatch.setattr(registry, "get", {"numba": profile}.__getitem__)
    policy = a_policy(tmp_path, constant_path=constant_path)
    job = a_job(comment="warmstart: profiles=numba")
    assert plan.profiles(policy, job, GRANT) == (["numba"] if used else [])
    assert plan.left_out(policy, job, GRANT) == ([] if used else ["numba"])


def test_the_preview_names_what_is_left_out(tmp_path: Path) -> None:
    """`warmstart plan` says so; of a wish that can't be met it tells the verdict instead."""
    policy = a_policy(tmp_path)
    assert preview(policy, a_job(comment="warmstart: profiles=torch-extensions"))["left_out"] == ["torch-extensions"]
    assert preview(policy, a_job(comment="warmstart: profiles=nope"))["left_out"] == []
