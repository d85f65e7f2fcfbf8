"""Profiles by name: what each promises of itself."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.lib.policy_site import find_user
from tests.lib.runs import a_policy
from warmstart import plan
from warmstart.caches.store.layout import Namespace
from warmstart.maintenance import repack
from warmstart.policy.match import Grant
from warmstart.policy.model import check_shape
from warmstart.profiles import registry
from warmstart.profiles.contract import Profile
from warmstart.profiles.registry import ProfileUnknown
from warmstart.profiles.shipped import PROFILES
from warmstart.request import NOTHING

NAMES = registry.names()
READ_AS_NOT_SET = {"JAX_COMPILATION_CACHE_DIR", "NEMO_HYBRIDEP_JIT_CACHE", "NUMBA_CACHE_DIR"}
# Variables that are no directory. Torch puts precompiled headers below TMPDIR: each job would build them.
SWITCHES = {
    "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED": "1",
    "FLEX_ATTENTION_CUTE_DSL_CACHE_ENABLED": "1",
    "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
    "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
}


@pytest.mark.parametrize("name", NAMES)
def test_variables_lead_into_the_profiles_own_directory_or_the_users_home(name: str) -> None:
    profile = registry.get(name)
    assert profile.name == name
    at_home = {variable for variable, template in profile.variables.items() if "{home}" in template}
    assert profile.environment("/x", str).keys() == profile.variables.keys() - at_home
    for variable, value in profile.environment("/w/cache", lambda: "/home/a").items():
        if variable in at_home:
            assert value.startswith("/home/a/")
        else:
            assert value == SWITCHES.get(variable) or f"{value}/".startswith(f"/w/cache/{name}/")


@pytest.mark.parametrize("name", NAMES)
def test_each_variable_has_what_the_tool_takes_without_it(name: str) -> None:
    """In a form that enroot's hook reads; never a path of ours, and empty only where the tool reads that as not set."""
    profile = registry.get(name)
    assert profile.defaults.keys() == profile.variables.keys()
    for variable, default in profile.defaults.items():
        assert re.fullmatch(r"(~|\{[A-Z_]+:[~/][a-z./]*\})?[^{}:~]*(\{user\}[^{}:~]*)?", default)
        assert default != profile.variables[variable]
        assert default or variable in READ_AS_NOT_SET


@pytest.mark.parametrize("profile", [profile for profile in PROFILES if profile.entries], ids=lambda it: it.name)
def test_a_shipped_profile_has_the_form_that_a_site_writes_its_own_in(profile: Profile) -> None:
    keys = ("variables", "entries", "never", "formats", "facts", "relocation", "lock", "in_step")
    written = json.loads(json.dumps({key: getattr(profile, key) for key in keys}).replace("WARMSTART_", ""))
    policy: Any = {"version": 1, "paths": {"store": "/s"}, "profiles": {profile.name: written}}
    assert not isinstance(found := check_shape(policy, find_user), list), found


def test_an_unknown_profile_is_the_policys_fault() -> None:
    with pytest.raises(ProfileUnknown, match="no profile nmba"):
        registry.get("nmba")


# Warp's own key is seven digits: of many users' modules two would soon have the same.
def test_a_job_that_publishes_into_a_shared_scope_is_left_without_warp(tmp_path: Path) -> None:
    grant = Grant(["warp"], ["warp"], {}, ["site"], "site", "")._replace(images=[])
    policy = a_policy(tmp_path)
    assert plan.profiles(policy, grant, NOTHING) == []
    assert plan.left_out(policy, grant, NOTHING) == {"warp": plan.SHARED_SCOPE}
    own = grant._replace(read_scopes=["site", "user-1-a"], publish_scope="user-1-a")
    assert plan.profiles(policy, own, NOTHING) == ["warp"]


@pytest.mark.parametrize("scope", ["site", "account-physics"])
def test_warps_entries_are_not_promoted(scope: str) -> None:
    where = Namespace("/store", "user-1-a", "warp", "0" * 32)
    with pytest.raises(repack.PromotionRefused, match="stay in their scope"):
        repack.require_promotable(where, scope)
