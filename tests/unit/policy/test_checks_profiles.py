"""Profiles of the site's own: what the policy takes, and where it says that it does not."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from tests.lib.policy_site import MINIMAL, Site, refusals
from warmstart.policy.schema import DerivedFact, Format
from warmstart.profiles.defined import FILES

DOCUMENT = (Path(__file__).resolve().parents[3] / "docs" / "reference" / "profiles.md").read_text()
WHOLE = (
    MINIMAL
    + """\
profiles:
  mytool:
    variables: {MYTOOL_CACHE: "{dir}/v1", MYTOOL_MODE: fast}
    entries: ["v1/*/", "**/*.bin"]
    never: ["*.log"]
    needs: [meta.json]
    formats: {"*.json": json, "*.so": library}
    facts: [cpu, gpu]
    relocation: relocatable
    max_size: 2MiB
rules:
  - {name: all, profiles: [mytool, numba]}
"""
)


def test_a_whole_profile_is_compiled(site: Site) -> None:
    """All that the policy says is in the form that hooks read; the image is always a fact."""
    site.write(WHOLE)
    policy = site.compiled()
    mytool, files = policy.profiles
    assert mytool.name == "mytool"
    assert mytool.variables == {"MYTOOL_CACHE": "{dir}/v1", "MYTOOL_MODE": "fast"}
    assert (mytool.entries, mytool.never, mytool.needs) == (("v1/*/", "**/*.bin"), ("*.log",), ("meta.json",))
    assert list(mytool.formats.items()) == [("*.json", "json"), ("*.so", "library")]
    assert (mytool.facts, mytool.relocation, mytool.max_size) == (("image", "cpu", "gpu"), "relocatable", 2 << 20)
    assert (files.name, files.facts, files.sidecars, files.empty) == (FILES, ("image", "declared", "gpu"), True, True)
    assert policy.rules[0].profiles == ("mytool", "numba")


def test_what_is_left_out_is_the_careful_choice(site: Site) -> None:
    """A profile that says no more than it must is bound to one path and one image."""
    site.write(MINIMAL + 'profiles: {t: {variables: {T: "{dir}"}, entries: ["*"]}}\n')
    policy = site.compiled()
    mytool = policy.profiles[0]
    assert (mytool.relocation, mytool.facts, mytool.max_size) == ("constant-path", ("image",), 1 << 30)
    assert [profile.after_success for profile in policy.profiles] == [False, True]


VARIABLES = 'variables: {T: "{dir}"}'


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        (
            f"  numba: {{{VARIABLES}, entries: ['*']}}\n",
            "4:3: profiles.numba: is a profile of warmstart; choose another name",
        ),
        (
            f"  files: {{{VARIABLES}, entries: ['*']}}\n",
            "4:3: profiles.files: is a profile of warmstart; choose another name",
        ),
        (f"  My: {{{VARIABLES}, entries: ['*']}}\n", "4:3: profiles: 'My' is not a profile's name: lower-case letters"),
        (f"  t: {{{VARIABLES}}}\n", "4:6: profiles.t.entries: missing"),
        (f"  t: {{{VARIABLES}, entries: []}}\n", "profiles.t.entries: is empty"),
        (f"  t: {{{VARIABLES}, entires: ['*']}}\n", "profiles.t.entires: unknown key; did you mean entries?"),
        (f"  t: {{{VARIABLES}, entries: ['../*']}}\n", "profiles.t.entries[0]: '../*' is not a pattern of paths"),
        (f"  t: {{{VARIABLES}, entries: ['/a']}}\n", "'/a' is not a pattern of paths"),
        (f"  t: {{{VARIABLES}, entries: ['**/a/**']}}\n", "'**/a/**' is not a pattern of paths"),
        (f"  t: {{{VARIABLES}, entries: ['a**']}}\n", "'a**' is not a pattern of paths"),
        (f"  t: {{{VARIABLES}, entries: ['(a|b)']}}\n", "'(a|b)' is not a pattern of paths"),
        (f"  t: {{{VARIABLES}, entries: ['*'], never: [a/b]}}\n", "'a/b' is not a pattern of names"),
        (f"  t: {{{VARIABLES}, entries: ['*'], formats: {{'*': elf}}}}\n", "profiles.t.formats.'*': expected 'any'"),
        (f"  t: {{{VARIABLES}, entries: ['*'], facts: [disk]}}\n", "profiles.t.facts[0]: expected 'cpu'"),
        (
            f"  t: {{{VARIABLES}, entries: ['*'], relocation: rewrite}}\n",
            "profiles.t.relocation: expected 'relocatable'",
        ),
        ("  t: {variables: {T: x}, entries: ['*']}\n", "4:7: profiles.t.variables: none contains {dir}"),
        ("  t: {variables: {SLURM_T: '{dir}'}, entries: ['*']}\n", "4:19: profiles.t.variables.SLURM_T: is reserved"),
    ],
)
def test_mistakes_have_a_place(site: Site, text: str, refusal: str) -> None:
    """And say what to write instead."""
    assert any(refusal in line for line in refusals(site, MINIMAL + "profiles:\n" + text))


def test_a_rule_names_profiles_that_there_are(site: Site) -> None:
    """`files` is no rule's: a job declares it."""
    (refusal,) = refusals(site, MINIMAL + "rules: [{name: a, profiles: [files]}]\n")
    assert "rules[0].profiles[0]" in refusal


def test_the_page_has_every_format() -> None:
    """The loader takes those that the validators know, and the page explains them."""
    section = DOCUMENT.partition("### Formats")[2].partition("\n## ")[0]
    assert tuple(re.findall(r"^\| `([a-z0-9-]+)` \|", section, re.MULTILINE)) == get_args(Format)
    assert set(get_args(DerivedFact)) == {"cpu", "driver", "gpu", "machine"}
