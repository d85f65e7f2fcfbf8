"""What the policy says of models."""

from __future__ import annotations

import pytest

from tests.support.policy_site import MINIMAL, Compile, Site, refusals
from warmstart.wings.models.offered import Models, offered

MODELS = MINIMAL.replace("paths: {", "paths: {shelf: /local, ") + "models: {prefixes: [/lustre], rate: 1GiB}\n"


def test_what_hooks_read(compiled_of: Compile) -> None:
    """Nothing of it where jobs may name none: then the wing is not used."""
    bare, policy = compiled_of(MINIMAL), compiled_of(MODELS)
    assert (offered(bare), offered(policy)) == (Models(), Models(("/lustre",), 500 << 30, 1 << 30))
    assert [[found.used for found in of.wings if found.name == "models"] for of in (bare, policy)] == [[False], [True]]
    assert [word.repeats for word in policy.words if word.name == "model"] == [True]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (MINIMAL + "models: {prefixes: [/lustre]}\n", "models.prefixes: needs paths.shelf, the disk where copies lie"),
        (MODELS.replace("/lustre", "/usr/local"), "models.prefixes[0]: may be neither below /usr nor above it"),
        (MODELS.replace("1GiB", "1KiB"), "models.rate: "),
    ],
)
def test_what_is_refused(site: Site, text: str, problem: str) -> None:
    """With its place."""
    assert any(problem in found for found in refusals(site, text))
