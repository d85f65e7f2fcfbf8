"""Which rules are a job's, and what they add up to."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warmstart.host.worker import Identity
from warmstart.job import Job
from warmstart.policy import compiled, load
from warmstart.policy.compiled import Condition, Pattern, Policy, Rule
from warmstart.policy.match import Grant, combine, matching

Compile = Callable[[str], dict[str, Any]]
JOB = Job(
    id=7,
    uid=1000,
    gid=1000,
    user="alice",
    node="n1",
    cluster="c",
    partition="gpu",
    account="ml-1",
    nodelist="n1",
    het_id=None,
    constraints="",
    comment="",
    pyxis_image="",
)
PUBLISHER = JOB._replace(uid=1500, user="svc_ci")
HEAD = """\
version: 1
paths: {store: /shared/warmstart}
images: {registries: [a.org]}
trust: {account: enforced}
rules:
"""
ALL = "  - {name: all, profiles: [numba]}\n"
ACCOUNT = "  - {name: acc, match: {partition: gpu}, scope: account, publish: {users: [svc_ci]}}\n"
SITE = "  - {name: site, match: {partition: [gpu]}, scope: site, publish: {users: [svc_ci]}}\n"
OWN = ["user-1000-alice"]


def no_groups() -> list[str]:
    """Fail the test: nothing here depends on groups."""
    raise AssertionError("the groups were looked up")


@pytest.fixture
def policy_of(compiled_of: Compile) -> Callable[[str], Policy]:
    """Return a function that makes a policy of a list of rules."""
    return lambda rules: compiled.from_json(compiled_of(HEAD + (rules or "  []\n")))


Make = Callable[[str], Policy]


def granted(policy: Policy, job: Job) -> Grant:
    """Return what a job gets where no rule needs its groups."""
    return combine(policy, matching(policy, job, no_groups), job)


NAMES = st.text(st.sampled_from("ab-.[]*?!^é\n"), max_size=6)


@settings(max_examples=400, deadline=None)
@given(st.lists(NAMES.filter(lambda name: name and "\n" not in name), min_size=1, max_size=3), NAMES)
def test_a_list_of_globs_matches_as_fnmatch_does(globs: list[str], partition: str) -> None:
    """Any pattern of a list is enough, case counts, and an attribute that is not there matches nothing."""
    patterns = tuple(Pattern(*pattern) for pattern in load.condition("partition", globs)[1])
    rule = Rule("r", "p:1", (Condition("partition", patterns),), (), (), "", (), {})
    policy = BARE._replace(rules=(rule,))
    (found,) = matching(policy, JOB._replace(partition=partition), no_groups)
    expected = partition != "" and any(fnmatch.fnmatchcase(partition, glob) for glob in globs)
    assert found.matched is expected


def test_all_keys_of_a_match_must_match(policy_of: Make) -> None:
    """Between keys there is an AND; the reason names the first that fails, or all that hold."""
    policy = policy_of(
        "  - {name: yes, match: {user: 'al*', node: n1, account: [x, ml-1]}}\n"
        "  - {name: no, match: {user: alice, node: n2, partition: [cpu, 'x*']}}\n"
        "  - {name: all}\n"
    )
    found = matching(policy, JOB, no_groups)
    assert [(one.rule.name, one.matched, one.reason) for one in found] == [
        ("yes", True, "account 'ml-1' matches 'ml-1'; user 'alice' matches 'al*'; node 'n1' matches 'n1'"),
        ("no", False, "partition 'gpu' is not 'cpu', 'x*'"),
        ("all", True, "is for every job"),
    ]


def test_case_counts(policy_of: Make) -> None:
    """A plain name and a glob both compare letters exactly."""
    policy = policy_of("  - {name: a, match: {partition: GPU}}\n  - {name: b, match: {partition: 'G*'}}\n")
    assert [one.matched for one in matching(policy, JOB, no_groups)] == [False, False]


def test_groups_are_looked_up_once_and_last(policy_of: Make) -> None:
    """A rule that fails on another key costs no look-up, two rules with groups cost one."""
    calls: list[int] = []

    def groups() -> list[str]:
        calls.append(1)
        return ["users", "ml-team"]

    other = "  - {name: a, match: {group: 'ml-*', partition: cpu}}\n"
    matching(policy_of(other), JOB, no_groups)
    policy = policy_of(f"{other}  - {{name: b, match: {{group: [x, 'ml-*']}}}}\n  - {{name: c, match: {{group: x}}}}\n")
    found = matching(policy, JOB, groups)
    assert [one.matched for one in found] == [False, True, False]
    assert found[1].reason == "group 'ml-team' matches 'ml-*'"
    assert found[2].reason == "group 'users', 'ml-team' is not 'x'"
    assert calls == [1]


def test_reasons_are_ascii_whatever_a_user_wrote(policy_of: Make) -> None:
    """Free text in an account reaches no terminal raw (threats, row 20)."""
    policy = policy_of("  - {name: a, match: {account: ml}}\n")
    (found,) = matching(policy, JOB._replace(account="\x1b[31m\u202eé"), no_groups)
    assert found.reason == r"account '\x1b[31m\u202e\xe9' is not 'ml'"


def test_later_rules_add_to_earlier_ones(policy_of: Make) -> None:
    """Images and profiles add up without repetition, variables override, the last scope holds."""
    grant = granted(
        policy_of(
            "  - {name: a, images: ['docker://a.org/x:1'], profiles: [numba], env: {A: '1', B: '1'}, scope: site}\n"
            "  - {name: no, match: {user: bob}, images: ['docker://a.org/bob:1'], env: {C: '1'}, scope: account}\n"
            "  - {name: b, images: ['docker://a.org/y:1', 'docker://a.org/x:1'], profiles: [inductor, numba],"
            " env: {B: '2'}}\n"
        ),
        JOB,
    )
    assert grant.images == ["docker://a.org/x:1", "docker://a.org/y:1"]
    assert grant.profiles == ["numba", "inductor"]
    assert grant.env == {"A": "1", "B": "2"}
    assert (grant.scope, grant.reason) == ("site", "")


@pytest.mark.parametrize(
    ("rules", "job", "read", "publish"),
    [
        ("", JOB, OWN, OWN[0]),
        (ALL, JOB, OWN, OWN[0]),
        (ACCOUNT, JOB, ["account-ml-1", *OWN], OWN[0]),
        (SITE, JOB, ["site", "account-ml-1", *OWN], OWN[0]),
        (SITE, JOB._replace(account=""), ["site", *OWN], OWN[0]),
        (ACCOUNT, JOB._replace(account=""), OWN, OWN[0]),
        (ACCOUNT, PUBLISHER, ["account-ml-1"], "account-ml-1"),
        (ACCOUNT, PUBLISHER._replace(account=""), ["user-1500-svc_ci"], "user-1500-svc_ci"),
        (SITE, PUBLISHER, ["site"], "site"),
        # Another partition: no right, and nothing of the site's either.
        (SITE, PUBLISHER._replace(partition="cpu"), ["user-1500-svc_ci"], "user-1500-svc_ci"),
        # The name with another uid, or the uid with another name: not whom the admin meant.
        (SITE, PUBLISHER._replace(uid=1600), ["site", "account-ml-1", "user-1600-svc_ci"], "user-1600-svc_ci"),
        (SITE, PUBLISHER._replace(user="bob"), ["site", "account-ml-1", "user-1500-bob"], "user-1500-bob"),
        # A later rule that narrows or widens the scope takes the right to publish away.
        (SITE + "  - {name: z, scope: user}\n", PUBLISHER, ["user-1500-svc_ci"], "user-1500-svc_ci"),
        (
            ACCOUNT + "  - {name: z, scope: site}\n",
            PUBLISHER,
            ["site", "account-ml-1", "user-1500-svc_ci"],
            "user-1500-svc_ci",
        ),
        (SITE + "  - {name: z, profiles: [numba]}\n", PUBLISHER, ["site"], "site"),
    ],
)
def test_scopes(policy_of: Make, rules: str, job: Job, read: list[str], publish: str) -> None:
    """Who reads what from the most trusted on, and who publishes where, reading nothing less trusted."""
    grant = granted(policy_of(rules), job)
    assert (grant.read_scopes, grant.publish_scope) == (read, publish)
    order = ["site", "account", "user"]
    ranks = [order.index(scope.split("-")[0]) for scope in grant.read_scopes]
    assert ranks == sorted(ranks)
    assert grant.publish_scope in grant.read_scopes
    if not grant.publish_scope.startswith("user-"):
        assert max(ranks) <= order.index(grant.publish_scope.split("-")[0])


def test_a_claimed_account_is_no_scope(compiled_of: Compile) -> None:
    """A site that enforces no associations has no account scope, not even between site and user."""
    text = HEAD.replace("trust: {account: enforced}\n", "") + SITE
    grant = granted(compiled.from_json(compiled_of(text)), JOB)
    assert grant.read_scopes == ["site", *OWN]


@pytest.mark.parametrize(
    ("account", "key"),
    [("a/../b", "account-a%2F..%2Fb"), ("é x", "account-%C3%A9%20x"), ("50%", "account-50%25"), (".", "account-.")],
)
def test_scope_keys_are_one_plain_name(policy_of: Make, account: str, key: str) -> None:
    """Whatever an account is called, its scope is one directory name, and no other account's."""
    grant = granted(policy_of(ACCOUNT), JOB._replace(account=account))
    assert grant.read_scopes[0] == key


@given(st.text(min_size=1), st.text(min_size=1))
def test_two_accounts_have_two_scope_keys(one: str, other: str) -> None:
    """Escaping loses nothing."""
    policy = BARE._replace(trust=compiled.Trust("enforced"), rules=(Rule("r", "p:1", (), (), (), "account", (), {}),))
    keys = [granted(policy, JOB._replace(account=account)).read_scopes[0] for account in (one, other)]
    assert (keys[0] == keys[1]) is (one == other)
    assert all(set(key) <= set("%-_.0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") for key in keys)


@pytest.mark.parametrize(
    ("uid", "reason"),
    [
        (0, "uid 0 is below limits.min_uid (1000)"),
        (999, "uid 999 is below limits.min_uid (1000)"),
        (2902, "uid 2902 is warmstart's own account warmstart-import"),
    ],
)
def test_system_accounts_get_nothing(policy_of: Make, uid: int, reason: str) -> None:
    """Jobs of low uids, and of warmstart's own accounts, are neither seeded nor harvested."""
    policy = policy_of(ALL)
    policy = policy._replace(import_user=policy.import_user._replace(uid=2902))
    assert granted(policy, JOB._replace(uid=uid)) == Grant([], [], {}, "user", [], "", reason)
    assert granted(policy, JOB).profiles == ["numba"]


BARE = Policy(
    signature=(),
    paths=compiled.Paths("/w", "/s", "/a", "/c"),
    store_user=Identity("warmstart", 901, 901),
    import_user=Identity("warmstart-import", 902, 902),
    validate_user=Identity("warmstart-validate", 903, 903),
    site_label="bare",
    images=compiled.Images("auto", (), (), 1, 1),
    seed=compiled.Seed(1, 1),
    harvest=compiled.Harvest(1, 1, 1),
    limits=compiled.Limits(1000),
    trust=compiled.Trust("claimed"),
    on_error=compiled.OnError("degrade", "verdict", "allow"),
    rules=(),
)
