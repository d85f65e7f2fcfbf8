"""What every profile promises, and what is made of it."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmstart.profiles import registry
from warmstart.profiles.contract import named_by

NAMES = registry.names()
READ_AS_NOT_SET = {"JAX_COMPILATION_CACHE_DIR", "NEMO_HYBRIDEP_JIT_CACHE", "NUMBA_CACHE_DIR"}


@pytest.mark.parametrize("name", NAMES)
def test_variables_lead_into_the_profiles_own_directory(name: str) -> None:
    """Below the job's cache, wherever that is, or to the user's home; a switch of the tool is the same everywhere."""
    profile = registry.get(name)
    assert re.fullmatch(r"[a-z0-9-]+", profile.name)
    here, there = profile.environment("/w/cache", lambda: "/home/a"), profile.environment("/x", lambda: "/home/a")
    assert here.keys() == there.keys() == profile.variables.keys()
    at_home = {variable for variable, template in profile.variables.items() if "{home}" in template}
    assert profile.environment("/x", str).keys() == there.keys() - at_home
    for variable, template in profile.variables.items():
        assert re.fullmatch(r"[A-Z][A-Z0-9_]*", variable)
        if "{dir}" in template:
            assert f"/w/cache/{profile.name}" in here[variable]
            assert here[variable].replace("/w/cache", "/x") == there[variable]
        else:
            assert here[variable] == there[variable] == template.replace("{home}", "/home/a")


@pytest.mark.parametrize("name", NAMES)
def test_each_variable_has_what_the_tool_takes_without_it(name: str) -> None:
    """In a form that enroot's hook reads; never a path of ours, and empty only where the tool reads that as not set."""
    profile = registry.get(name)
    assert profile.defaults.keys() == profile.variables.keys()
    for variable, default in profile.defaults.items():
        assert re.fullmatch(r"(~|\{[A-Z_]+:[~/][a-z./]*\})?[^{}:~]*(\{user\}[^{}:~]*)?", default)
        assert default != profile.variables[variable]
        assert default or variable in READ_AS_NOT_SET


@pytest.mark.parametrize("name", NAMES)
def test_a_profile_does_not_contradict_itself(name: str) -> None:
    """What needs one path has no other; what is copied under a lock is no overlay."""
    profile = registry.get(name)
    assert profile.follows_links is False or profile.relocation == "constant-path"
    assert profile.suits_overlay == (not profile.exact_times and not profile.lock)
    assert "image" in profile.facts
    assert len({*profile.facts}) == len(profile.facts)


@given(st.text("ab/.", max_size=8))
def test_the_first_pattern_that_fits_all_of_a_path_names_its_entry(path: str) -> None:
    """By its first group; a part of a path is none."""
    entry_of = named_by(r"(a+)/b", r"(a+b)", r"(a)b.*")
    expected = next(
        (match[1] for pattern in (r"(a+)/b", r"(a+b)", r"(a)b.*") if (match := re.fullmatch(pattern, path))), None
    )
    assert entry_of(path) == expected
