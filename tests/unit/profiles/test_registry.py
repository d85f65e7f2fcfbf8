"""Profiles by name, and what a hot prolog needs of them."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from warmstart import profiles
from warmstart.profiles import registry
from warmstart.profiles.contract import Profile
from warmstart.profiles.entry_files import REASONS
from warmstart.profiles.registry import ProfileUnknown

# Variables that are no directory.
SWITCHES = {
    "FLASH_ATTENTION_CUTE_DSL_CACHE_ENABLED": "1",
    "FLEX_ATTENTION_CUTE_DSL_CACHE_ENABLED": "1",
    "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
    "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS": "0",
}
FACTS = {"cpu": "CPU", "gpu": "GPU"}  # as the documentation writes them
HOOKS = Path(__file__).parents[3] / "hooks"
DOCUMENT = HOOKS.parent / "docs/reference/profiles.md"
# What docs/architecture.md, rule 11, forbids on the hot path, and what only the judge needs.
HEAVY = {
    "dataclasses",
    "hashlib",
    "logging",
    "pathlib",
    "pickletools",
    "subprocess",
    "warmstart.profiles.entry_files",
}


def test_every_profile_says_all_about_itself() -> None:
    """Names agree, and variables point into the profile's own directory."""
    for name in registry.names():
        profile = registry.get(name)
        assert profile.name == name
        for variable, value in profile.environment("/cache", str).items():
            inside = value == f"/cache/{name}" or value.startswith(f"/cache/{name}/")
            assert inside or value == SWITCHES.get(variable)
        assert "image" in profile.facts


def test_every_profile_is_registered() -> None:
    """A module of profiles/ with a `PROFILE` that the registry does not name is of no use to anybody."""
    modules = [path.stem for path in Path(profiles.__path__[0]).glob("*.py") if "\nPROFILE = " in path.read_text()]
    assert sorted(module.replace("_", "-") for module in modules) == registry.names()


def test_the_documentation_has_every_profile() -> None:
    """The first table of docs/reference/profiles.md says of each profile what its module says."""
    table = DOCUMENT.read_text().partition("| profile | variables |")[2].partition("\n\n")[0]
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]
    found = {
        row[0].strip("`"): (
            {*re.findall(r"`([A-Z_]+)", row[1])},
            row[2].partition(" (")[0],
            {*row[3].split(", ")},
            row[4],
        )
        for row in rows
    }
    assert found == {
        name: (
            {*registry.get(name).variables},
            registry.get(name).relocation.replace("-", " "),
            {FACTS.get(fact, fact) for fact in registry.get(name).facts},
            while_running(registry.get(name)),
        )
        for name in registry.names()
    }


def while_running(profile: Profile) -> str:
    """Return what is taken of a profile of a job that runs, as the table says it."""
    if profile.lock or profile.after_success:
        return "at its end alone"
    others = ", ".join(f"`{name}`" for name in profile.refers_to if name != profile.name)
    return f"all at once, with {others}" if profile.refers_to else "each entry"


def test_an_unknown_profile_is_the_policys_fault() -> None:
    """The error names the profile and those that exist."""
    with pytest.raises(ProfileUnknown) as caught:
        registry.get("nmba")
    assert str(caught.value) == f"there is no profile nmba; there are: {', '.join(registry.names())}"


def test_a_prolog_loads_no_validator() -> None:
    """Variables, entry rules and namespaces come without what only the judge or a namespace needs."""
    program = (
        "import sys; before = set(sys.modules); from warmstart.profiles import registry, facts\n"
        "for name in registry.names():\n"
        "    registry.get(name).environment('/c', str)\n"
        f"print(sorted(({HEAVY!r} & set(sys.modules)) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-ISc", f"import sys; sys.path.insert(0, {str(HOOKS)!r}); {program}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_the_documented_reasons_are_the_codes() -> None:
    """docs/reference/profiles.md lists each reason with its meaning, and no other."""
    table = DOCUMENT.read_text().partition("## Reasons")[2].partition("\n## ")[0]
    assert dict(re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", table, re.MULTILINE)) == REASONS


def test_one_profile_is_a_file_under_a_lock() -> None:
    """Torch-TensorRT's; and what a failed job leaves of a shipped profile is judged like any other's."""
    assert {name for name in registry.names() if registry.get(name).lock} == {"trt-rtx"}
    assert {name for name in registry.names() if registry.get(name).after_success} == set()
