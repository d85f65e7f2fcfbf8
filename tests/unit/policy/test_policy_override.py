"""The rules' `override`: variables that a job's user can't set for himself."""

from __future__ import annotations

import pytest

from tests.support.policy_site import Compile
from tests.support.runs import a_job
from warmstart.policy.invalid import PolicyInvalid
from warmstart.policy.match import combine, matching

HEAD = "version: 1\npaths: {store: /shared/warmstart}\nrules:\n  - {name: other, env: {OTHER: x}}\n  - name: a\n"


@pytest.mark.parametrize(
    ("names", "refusal"),
    [
        ("[NUMBA_CACHE]", "6:16: rules[1].override[0]: nothing sets NUMBA_CACHE; put it into env, or correct it"),
        ("[OTHER, WARMSTART_CACHE]", "6:23: rules[1].override[1]: WARMSTART_CACHE is never the user's; leave it out"),
        ("[A=1]", "6:16: rules[1].override[0]: 'A=1' is not a variable's name"),
        ("OTHER", "6:15: rules[1].override: expected a list"),
    ],
)
def test_a_name_that_would_have_no_effect_is_refused(compiled_of: Compile, names: str, refusal: str) -> None:
    """With its place, and what to write instead."""
    with pytest.raises(PolicyInvalid) as caught:
        compiled_of(f"{HEAD}    override: {names}\n")
    assert refusal in str(caught.value)


def test_what_rules_override_adds_up(compiled_of: Compile) -> None:
    """Of all rules that match; a rule may name what another one, a profile or warmstart sets."""
    rules = "    override: [OTHER, NUMBA_CACHE_DIR]\n  - {name: b, override: [TMPDIR]}\n"
    policy = compiled_of(f"{HEAD}{rules}  - {{name: c, match: {{partition: x}}, override: [MASTER_ADDR]}}\n")
    job = a_job(uid=2000)
    grant = combine(policy, matching(policy, job, list), job)
    assert grant.override == {"OTHER", "NUMBA_CACHE_DIR", "TMPDIR"}
