"""What the policy says of trees, and which of them a job shares with others."""

from __future__ import annotations

import pytest

from tests.lib.policy_site import MINIMAL, Compile, Site, find_user, refusals
from tests.lib.runs import a_job
from warmstart import wing
from warmstart.job import Job
from warmstart.policy.compiled import Policy
from warmstart.policy.match import combine, matching
from warmstart.policy.schema import whole
from warmstart.policy.shared import SharedPath, granted
from warmstart.wings.trees import policy as part
from warmstart.wings.trees.offered import KEY, Trees, offered

TREES = """\
version: 1
paths: {store: /shared/warmstart}
trust: {account: enforced}
trees: {prefixes: [/lustre]}
rules:
  - {name: site, trees: [{path: /lustre/sw/*, owners: [operator, root], scope: site}]}
  - {name: ml, match: {account: ml-*}, trees: [{path: /lustre/ml, owners: [svc_ml], scope: account, marker: a/b}]}
"""
JOB = a_job(account="ml-1")


def shared(policy: Policy, job: Job) -> tuple[SharedPath, ...]:
    """Return the trees that a job shares."""
    return granted(policy, job, combine(policy, matching(policy, job, list), job), KEY)


def test_what_hooks_read(compiled_of: Compile) -> None:
    """Nothing of it where jobs may ask for none: then the wing is not used, and nodes keep no copies."""
    bare, policy = compiled_of(MINIMAL), compiled_of(f"{MINIMAL}trees: {{prefixes: [/lustre]}}\n")
    assert offered(bare) == Trees()
    assert offered(policy) == Trees(("/lustre",), 20 << 30, 50 << 30)
    used = {found.used: found.keep for of in (bare, policy) for found in of.wings if found.name == "trees"}
    assert used == {False: 0, True: 50 << 30}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("trees: {prefixes: [/usr/local]}", "3:20: trees.prefixes[0]: may be neither below /usr nor above it"),
        ("trees: {prefixes: [/shared]}", "3:20: trees.prefixes[0]: may be neither in paths.store nor above it"),
        ("trees: {prefixes: [/lustre/]}", "3:20: trees.prefixes[0]: write /lustre,"),
    ],
)
def test_prefixes_are_nobody_elses(site: Site, text: str, problem: str) -> None:
    """A job sees a copy in place of what is below one."""
    (found,) = refusals(site, f"{MINIMAL}{text}\n")
    assert found.startswith(problem)


@pytest.mark.parametrize(
    ("rule", "refusal"),
    [
        ("{path: /lustre/sw, owners: [root], scope: account}", "trees[0].scope: account needs trust.account: enforced"),
        ("{path: /lustre/sw, owners: [root], scope: user}", "trees[0].scope: expected 'account' or 'site'"),
        ("{path: /lustre/sw, owners: [ghost], scope: site}", "trees[0].owners[0]: no user 'ghost' on this node"),
        ("{path: /lustre/sw, owners: [], scope: site}", "trees[0].owners: is empty"),
        ("{path: /lustre/sw/, owners: [root], scope: site}", "trees[0].path: write /lustre/sw, without"),
        ("{path: /lustrous, owners: [root], scope: site}", "trees[0].path: /lustrous is below none of trees.prefixes"),
        ("{path: /lustre, owners: [root], scope: site}", "trees[0].path: /lustre is below none of trees.prefixes"),
        (
            "{path: /lustre/a, owners: [root], scope: site, marker: ../b}",
            "trees[0].marker: '../b' is not a path in a tree",
        ),
        ("{path: /lustre/a, owners: [root], scope: site, marker: /b}", "trees[0].marker: '/b' is not a path in a tree"),
    ],
)
def test_trees_of_many_are_owned_and_below_a_prefix(site: Site, rule: str, refusal: str) -> None:
    """Only what the policy offers as trees can be shared."""
    text = f"{MINIMAL}trees: {{prefixes: [/lustre]}}\nrules:\n  - {{name: a, trees: [{rule}]}}\n"
    (problem,) = refusals(site, text)
    assert f"rules[0].{refusal}" in problem
    tree = "{path: /lustre/*/env, owners: [root], scope: site, marker: .version/x..y}"
    (problem,) = refusals(site, text.replace(rule, tree).replace("name: a", "name: a, match: {account: ml}"))
    assert "rules[0].match.account: trees may not depend on a claimed attribute" in problem


@pytest.mark.parametrize(
    "prefix", ["/opt", "/opt/site/lib/warmstart/1", "/opt/site/var/lib/warmstart", "/opt/site/etc"]
)
def test_a_tree_is_none_of_warmstarts_own_directories(site: Site, monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    """Those of an installation below a prefix of its own, which the code's path tells."""
    text = f"{MINIMAL}trees: {{prefixes: [{prefix}]}}\n"
    site.write(text)
    site.compiled()
    monkeypatch.setattr(wing, "FOLDER", "/opt/site/lib/warmstart/releases/1/warmstart/wings")
    model = whole().model_validate(
        {"version": 1, "paths": {"store": "/shared/warmstart"}, "trees": {"prefixes": [prefix]}}
    )
    (fault,) = part.faults(model, find_user)
    assert "neither in warmstart's own directories nor above" in fault.problem


def test_trees_of_all_matching_rules_add_up(compiled_of: Compile) -> None:
    """In the order of the rules, each with the scope of this job's account."""
    policy = compiled_of(TREES)
    site = ("/lustre/sw/*", (("operator", 800), ("root", 0)), "site", "", "site")
    assert list(shared(policy, JOB)) == [site, ("/lustre/ml", (("svc_ml", 1501),), "account-ml-1", "a/b", "ml")]
    assert list(shared(policy, JOB._replace(account="bio"))) == [site]


def test_a_claimed_account_shares_no_trees(compiled_of: Compile) -> None:
    """Neither by a rule that matches on it, nor by one that names its scope."""
    policy = compiled_of(TREES.replace("match: {account: ml-*}, ", ""))
    assert [tree.rule for tree in shared(policy, JOB)] == ["site", "ml"]
    assert [tree.rule for tree in shared(policy, JOB._replace(account=""))] == ["site"]
    for text in (TREES, TREES.replace("match: {account: ml-*}, ", "")):
        policy = compiled_of(text)
        policy = policy._replace(trust=policy.trust._replace(account="unproven"))
        assert [tree.rule for tree in shared(policy, JOB)] == ["site"]
