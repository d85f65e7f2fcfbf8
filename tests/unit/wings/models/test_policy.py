"""What the policy says of models."""

from __future__ import annotations

import pytest

from tests.lib.policy_site import MINIMAL, Compile, Site, refusals
from tests.lib.runs import a_job
from warmstart.policy.match import combine, matching
from warmstart.policy.shared import granted
from warmstart.wings.models.offered import KEY, Models, offered

MODELS = MINIMAL.replace("paths: {", "paths: {shelf: /local, ") + "models: {prefixes: [/lustre], rate: 1GiB}\n"


def test_what_hooks_read(compiled_of: Compile) -> None:
    bare, policy = compiled_of(MINIMAL), compiled_of(MODELS)
    assert (offered(bare), offered(policy)) == (Models(), Models(("/lustre",), 500 << 30, 1 << 30))
    assert [[found.used for found in of.wings if found.name == "models"] for of in (bare, policy)] == [[False], [True]]
    assert [word.repeats for word in policy.words if word.name == "model"] == [True]


RULES = """\
trust: {account: enforced}
rules:
  - {name: all, models: [{path: /lustre/*, owners: [operator], scope: site}]}
  - {name: ml, models: [{path: /lustre/ml/*, owners: [svc_ml, root], scope: account}]}
"""


def test_models_of_all_matching_rules_add_up(compiled_of: Compile) -> None:
    policy, job = compiled_of(MODELS + RULES), a_job(account="ml-1")
    site = ("/lustre/*", (("operator", 800),), "site", "all")
    account = ("/lustre/ml/*", (("svc_ml", 1501), ("root", 0)), "account-ml-1", "ml")
    assert granted(policy, job, combine(policy, matching(policy, job, list), job), KEY) == (site, account)


@pytest.mark.parametrize(
    ("text", "key", "words"),
    [
        (MINIMAL + "models: {prefixes: [/lustre]}\n", "models.prefixes", "needs paths.shelf"),
        (MODELS.replace("/lustre", "/usr/local"), "models.prefixes[0]", "below /usr"),
        (MODELS.replace("1GiB", "1KiB"), "models.rate", ""),
        (MODELS + RULES.replace("/lustre/ml", "/home"), "rules[1].models[0].path", "below none of models.prefixes"),
        (MODELS + RULES.replace("svc_ml", "ghost"), "rules[1].models[0].owners[0]", "no user 'ghost'"),
        (MODELS + RULES.partition("\n")[2], "rules[1].models[0].scope", "needs trust.account"),
    ],
)
def test_what_is_refused(site: Site, text: str, key: str, words: str) -> None:
    (problem,) = (found for found in refusals(site, text) if f" {key}: " in found)
    assert words in problem
