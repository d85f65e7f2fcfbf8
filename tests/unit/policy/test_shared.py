"""Directories that an account or the site has one copy of: what of a wing's key is a job's, and which one counts."""

from __future__ import annotations

import pytest

from tests.lib.policy_site import defaults
from tests.lib.runs import a_job
from warmstart.policy.keys import Trust, User
from warmstart.policy.match import combine
from warmstart.policy.shared import SharedPath, covering, granted

SITE = ["/l/sw/*", [["operator", 800], ["root", 0]], "site", "all"]
ACCOUNT = ["/l/ml", [["svc_ml", 1501]], "account", "ml"]


@pytest.mark.parametrize(("doubted", "rules"), [(False, ["all", "ml"]), (True, ["all"])])
def test_an_account_shares_only_where_it_is_enforced(doubted: bool, rules: list[str]) -> None:
    policy = defaults()._replace(trust=Trust("enforced"), doubt="not known" if doubted else "")
    job = a_job(account="ml-1")
    grant = combine(policy, [], job)._replace(own={"wing": [[SITE], [ACCOUNT]]})
    found = granted(policy, job, grant, "wing")
    assert [item.rule for item in found] == rules
    assert found[0] == SharedPath("/l/sw/*", (User("operator", 800), User("root", 0)), "site", "all")
    assert [item.scope for item in found[1:]] == ["account-ml-1"][: len(rules) - 1]
    assert found[0].uids == [0, 800]
    assert granted(policy, job, grant, "another") == ()


@pytest.mark.parametrize(
    ("path", "last"),
    [
        ("/l/sw", "none"),
        ("/l/sw/a", "all"),
        ("/l/sw/py-3", "py"),
        ("/l/sw/py-3/lib", "none"),
        ("/l/sw/x/env", "deep"),
        ("/l/sw/x/y/env", "none"),
    ],
)
def test_the_last_rule_that_covers_a_path_counts(path: str, last: str) -> None:
    globs = {"all": "/l/sw/*", "deep": "/l/sw/*/env", "py": "/l/sw/py*"}
    found = covering(path, [SharedPath(glob, (), "site", rule) for rule, glob in globs.items()])
    assert (found.rule if found else "none") == last
