"""Warp's modules, as Warp compiled them without a GPU: for the CPU, and for two GPUs. They stay with their user."""

from __future__ import annotations

import pytest

from tests.lib.cache_files import of_tool
from tests.lib.judging import Judge
from tests.lib.runs import a_policy
from warmstart import plan
from warmstart.policy.match import Grant
from warmstart.profiles import registry
from warmstart.repack import rewrite
from warmstart.request import NOTHING
from warmstart.store.layout import Namespace

FILES = of_tool("warp")
FOR_GPU = {name: content for name, content in FILES.items() if "_583bcb4/" in name}
FOR_CPU = {name: content for name, content in FILES.items() if name not in FOR_GPU}
STEM = next(iter(FOR_GPU)).rpartition("/")[0] + "/wp___main___583bcb4"


@pytest.mark.parametrize("files", [FOR_CPU, FOR_GPU], ids=["cpu", "gpu"])
def test_what_warp_compiled_is_valid(verdict: Judge, files: dict[str, bytes]) -> None:
    """One module is one entry, for however many targets."""
    assert verdict("warp", files) is None


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        (f"{STEM}.meta", b"", "json-malformed"),
        (f"{STEM}.meta", b'{"f_smem_bytes": "1"}', "field-malformed"),
        (f"{STEM}.sm90.cubin", b"", "elf-truncated"),
        (f"{STEM}.sm90.cubin", FOR_GPU[f"{STEM}.sm90.cubin"][:-1], "elf-truncated"),
        (f"{STEM}.sm90.cubin", FOR_GPU[f"{STEM}.sm80.cubin"], "other-target"),
        (f"{STEM}.cpu01234567.o", b"", "elf-truncated"),
        (f"{STEM}.sm75.ptx", b".version 8.0\n.target sm_80\n.visible .entry f()\n", "other-target"),
        (f"{STEM}.cu", b"\0", "text-malformed"),
    ],
)
def test_a_damaged_module_is_refused(verdict: Judge, name: str, content: bytes, reason: str) -> None:
    """Code that was cut short, or is for another GPU than its name says."""
    assert verdict("warp", {**FOR_GPU, name: content}) == reason


@pytest.mark.parametrize("kinds", [(".meta",), (".cubin",)])
def test_a_module_without_metadata_or_code_is_refused(verdict: Judge, kinds: tuple[str, ...]) -> None:
    """Warp fails without the one, and has nothing to load without the other."""
    assert verdict("warp", {name: FOR_GPU[name] for name in FOR_GPU if not name.endswith(kinds)}) == "incomplete"


def test_a_job_that_publishes_into_a_shared_scope_is_left_without_it(tmp_path: object) -> None:
    """Of many users' modules two would soon have the same seven digits."""
    grant = Grant(["warp"], ["warp"], {}, "site", ["site"], "site", "")._replace(images=[])
    policy = a_policy(tmp_path)  # type: ignore[arg-type]
    assert plan.profiles(policy, grant, NOTHING) == []
    assert plan.left_out(policy, grant, NOTHING) == {"warp": plan.SHARED_SCOPE}
    own = grant._replace(read_scopes=["site", "user-1-a"], publish_scope="user-1-a")
    assert plan.profiles(policy, own, NOTHING) == ["warp"]


@pytest.mark.parametrize("scope", ["site", "account-physics"])
def test_entries_are_not_promoted(scope: str) -> None:
    """The same holds for administrators."""
    where = Namespace("/store", "user-1-a", "warp", "0" * 32)
    with pytest.raises(rewrite.PromotionRefused, match="stay in their user's own scope"):
        rewrite.promote(None, where, "b", [], None, scope=scope)  # type: ignore[arg-type]


def test_no_other_profiles_entries_stay_with_their_user() -> None:
    """A field of the profile says so."""
    assert [name for name in registry.names() if registry.is_of_user(name)] == ["warp"]
    assert not registry.is_of_user("a-sites-own")
