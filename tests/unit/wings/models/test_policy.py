"""What the policy says of models. Rules for many are those of trees (`policy.checks`)."""

from __future__ import annotations

import pytest

from tests.lib.policy_site import MINIMAL, Compile, Site, refusals
from tests.lib.runs import a_job
from warmstart.policy.match import combine, matching
from warmstart.policy.shared import granted
from warmstart.wings.models.offered import KEY, Models, offered

MODELS = MINIMAL.replace("paths: {", "paths: {shelf: /local, ") + "models: {prefixes: [/lustre], rate: 1GiB}\n"
RULES = "rules:\n  - {name: all, models: [{path: /lustre/*, owners: [operator], scope: site}]}\n"


def test_what_hooks_read(compiled_of: Compile) -> None:
    bare, policy = compiled_of(MINIMAL), compiled_of(MODELS + RULES)
    assert (offered(bare), offered(policy)) == (Models(), Models(("/lustre",), 500 << 30, 1 << 30))
    assert [[found.used for found in of.wings if found.name == "models"] for of in (bare, policy)] == [[False], [True]]
    assert [word.repeats for word in policy.words if word.name == "model"] == [True]
    job = a_job()
    shared = granted(policy, job, combine(policy, matching(policy, job, list), job), KEY)
    assert shared == (("/lustre/*", (("operator", 800),), "site", "all"),)


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        (MINIMAL + "models: {prefixes: [/lustre]}\n", "models.prefixes", "needs paths.shelf"),
        (MODELS.replace("/lustre", "/usr/local"), "models.prefixes[0]", "below /usr"),
        (MODELS.replace("1GiB", "1KiB"), "models.rate", "too low"),
        (MODELS + RULES.replace("/lustre", "/home"), "rules[0].models[0].path", "below none of models.prefixes"),
    ],
)
def test_what_is_refused(site: Site, text: str, key: str, words: str) -> None:
    (problem,) = refusals(site, text)
    assert f" {key}: " in problem
    assert words in problem
