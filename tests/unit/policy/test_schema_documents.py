"""The policies, the schema and the page that admins get are what the code takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lib.policy_site import Site
from warmstart.images import reference
from warmstart.policy import checks
from warmstart.policy.types import REFERENCE, REGISTRY
from warmstart.profiles import registry

REPOSITORY = Path(__file__).resolve().parents[3]
POLICIES = REPOSITORY / "policies"
FILES = [POLICIES / "site.yaml", *sorted((POLICIES / "examples").glob("*.yaml"))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_policy_that_is_shipped_compiles(site: Site, path: Path) -> None:
    site.write(path.read_text())
    assert site.compiled().rules


def test_the_recipes_lines_hold_without_their_comment(site: Site) -> None:
    text = (POLICIES / "examples" / "recipes.yaml").read_text()
    site.write(text)
    assert [rule.override for rule in site.compiled().rules] == [()] * 5
    site.write(text.replace("# override:", "override:"))
    for rule in site.compiled().rules:
        variables = {name for profile in rule.profiles for name in registry.get(profile).variables}
        assert {*rule.override} <= variables, rule.name
        assert rule.override, rule.name


def test_the_starting_policy_shows_defaults(site: Site) -> None:
    site.write((POLICIES / "site.yaml").read_text())
    documented = site.compiled()
    site.write("version: 1\npaths: {store: /shared/warmstart}\n")
    default = site.compiled()
    assert (
        documented._replace(
            signature=default.signature,
            rules=(),
            profiles=default.profiles,
            images=documented.images._replace(registries=()),
        )
        == default
    )


EXAMPLES = [
    pytest.param(example, id=f"{path.stem}-{number}")
    for path in sorted((REPOSITORY / "docs").rglob("*.md"))
    for number, example in enumerate(re.findall(r"```yaml\n(version: 1\n.*?)```", path.read_text(), re.DOTALL))
]


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_documents_examples_compile(site: Site, example: str) -> None:
    site.write(example)
    assert site.compiled().rules


PIECES = st.lists(
    st.sampled_from(["a", "0", "Z", "ab.c", "localhost", ".", "-", "_", "__", "/", "#", ":", ":1", ":99999", "@", "é"]),
    max_size=9,
).map("".join)
DIGEST = "@sha256:" + "0" * 64


@settings(max_examples=1000)
@given(PIECES, st.sampled_from(["", ":x", DIGEST, f":x{DIGEST}"]))
def test_an_image_that_the_policy_takes_is_one_for_the_image_code(name: str, rest: str) -> None:
    """An admin's image can't turn out wrong in every job: both read the same reference."""
    text = f"docker://{name}{rest}"
    if re.fullmatch(REFERENCE, text) and re.fullmatch(REGISTRY, checks.registry_of(text)):
        assert reference.parse(text).registry == checks.registry_of(text)
