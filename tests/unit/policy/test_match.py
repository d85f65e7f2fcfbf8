"""Which rules are a job's, what they add up to, and variables that they override."""

from __future__ import annotations

import fnmatch
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.lib.policy_site import Compile, a_rule, defaults
from tests.lib.runs import a_job
from warmstart import plan
from warmstart.job import Job
from warmstart.policy import match
from warmstart.policy.keys import Match, Policy
from warmstart.policy.match import (
    NO_RULE,
    Grant,
    combine,
    matching,
    private_repository,
)

JOB = a_job(uid=1000, gid=1000, user="alice", cluster="c", partition="gpu", account="ml-1")
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
    return lambda rules: compiled_of(HEAD + (rules or "  []\n"))


Make = Callable[[str], Policy]


def granted(policy: Policy, job: Job) -> Grant:
    return combine(policy, matching(policy, job, no_groups), job)


NAMES = st.text(st.sampled_from("abA-.[]*?!^é\n"), max_size=6)


@settings(max_examples=400)
@given(st.lists(NAMES.filter(lambda name: name and not {*name} & {*"\n?[]"}), min_size=1, max_size=3), NAMES)
def test_a_list_of_globs_matches_as_fnmatch_does(globs: list[str], partition: str) -> None:
    rule = a_rule(match=Match(partition=tuple(globs)))
    policy = BARE._replace(rules=(rule,))
    (found,) = matching(policy, JOB._replace(partition=partition), no_groups)
    expected = partition != "" and any(fnmatch.fnmatchcase(partition, glob) for glob in globs)
    assert found.matched is expected


def test_all_keys_of_a_match_must_match(policy_of: Make) -> None:
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


@pytest.mark.threat(8)
def test_a_job_that_names_its_cache_stays_in_its_users_scope(policy_of: Make) -> None:
    policy = policy_of(ALL + SITE)
    for job in (JOB, PUBLISHER):
        grant = granted(policy, job)
        assert (grant.cache, match.parted(job, grant, "")) == ("", grant)
        named = match.parted(job, grant, "x")
        own = f"user-{job.uid}-{job.user}"
        assert (named.read_scopes, named.publish_scope, named.cache) == ([own], own, "x")


def test_groups_are_looked_up_once_and_last(policy_of: Make) -> None:
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


@pytest.mark.threat(20)
def test_reasons_are_ascii_whatever_a_user_wrote(policy_of: Make) -> None:
    """Free text in an account reaches no terminal raw (docs/threats.md, row 20)."""
    policy = policy_of("  - {name: a, match: {account: ml}}\n")
    (found,) = matching(policy, JOB._replace(account="\x1b[31m\u202eé"), no_groups)
    assert found.reason == r"account '\x1b[31m\u202e\xe9' is not 'ml'"


def test_later_rules_add_to_earlier_ones(policy_of: Make) -> None:
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
    assert (grant.read_scopes[0], grant.reason) == ("site", "")


@pytest.mark.threat(9)
@pytest.mark.parametrize(
    ("rules", "job", "read", "publish"),
    [
        (ALL, JOB, OWN, OWN[0]),
        (ACCOUNT, JOB, ["account-ml-1", *OWN], OWN[0]),
        (SITE, JOB, ["site", "account-ml-1", *OWN], OWN[0]),
        (SITE, JOB._replace(account=""), ["site", *OWN], OWN[0]),
        (ACCOUNT, JOB._replace(account=""), OWN, OWN[0]),
        (ACCOUNT, PUBLISHER, ["account-ml-1"], "account-ml-1"),
        (ACCOUNT, PUBLISHER._replace(account=""), ["user-1500-svc_ci"], "user-1500-svc_ci"),
        (SITE, PUBLISHER, ["site"], "site"),
        # Another partition: no right, and nothing of the site's either.
        (ALL + SITE, PUBLISHER._replace(partition="cpu"), ["user-1500-svc_ci"], "user-1500-svc_ci"),
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
    grant = granted(policy_of(rules), job)
    assert (grant.read_scopes, grant.publish_scope) == (read, publish)
    order = ["site", "account", "user"]
    ranks = [order.index(scope.split("-")[0]) for scope in grant.read_scopes]
    assert ranks == sorted(ranks)
    assert grant.publish_scope in grant.read_scopes
    if not grant.publish_scope.startswith("user-"):
        assert max(ranks) <= order.index(grant.publish_scope.split("-")[0])


@pytest.mark.threat(3)
def test_a_claimed_account_is_no_scope(compiled_of: Compile) -> None:
    text = HEAD.replace("trust: {account: enforced}\n", "") + SITE
    grant = granted(compiled_of(text), JOB)
    assert grant.read_scopes == ["site", *OWN]


def test_what_is_not_known_grants_nothing(compiled_of: Compile) -> None:
    policy = compiled_of(
        HEAD
        + "  - {name: a, match: {qos: '*', user: alice}, env: {A: '1'}}\n  - {name: b, match: {qos: '*', user: bob}}\n",
    )
    found = matching(policy, JOB, no_groups)
    assert [(one.matched, one.unknown) for one in found] == [(False, True), (False, False)]
    assert found[0].reason == "user 'alice' matches 'alice'; qos is not known on this node"
    assert found[1].reason == "user 'alice' is not 'bob'"
    assert granted(policy, JOB).env == {}


@pytest.mark.threat(14)
@pytest.mark.parametrize(
    ("rules", "read", "publish"),
    [
        # What a rule would grant is not granted.
        (ALL + "  - {name: q, match: {group: hi}, scope: site}\n", OWN, OWN[0]),
        # What it would take away is taken away.
        (SITE + "  - {name: q, match: {group: low}, scope: user}\n", ["user-1500-svc_ci"], "user-1500-svc_ci"),
        # Narrowed to a scope in which the job could publish if the rule were not there: it reads only.
        (
            ACCOUNT + "  - {name: s, scope: site}\n  - {name: q, match: {group: low}, scope: account}\n",
            ["account-ml-1", "user-1500-svc_ci"],
            "user-1500-svc_ci",
        ),
        # It does not widen, and a later rule that is sure holds.
        (ACCOUNT + "  - {name: q, match: {group: low}, scope: site}\n", ["account-ml-1"], "account-ml-1"),
        (
            SITE + "  - {name: q, match: {group: low}, scope: user}\n" + SITE.replace("site,", "again,", 1),
            ["site"],
            "site",
        ),
    ],
)
def test_what_is_not_known_restricts(compiled_of: Compile, rules: str, read: list[str], publish: str) -> None:
    """A user whose groups or whose spec a node does not have escapes no rule (docs/threats.md, row 14)."""
    job = PUBLISHER if "svc_ci" in rules else JOB
    policy = compiled_of(HEAD + rules)
    grant = combine(policy, matching(policy, job, lambda: [None]), job)
    assert (grant.read_scopes, grant.publish_scope) == (read, publish)


@pytest.mark.parametrize(
    ("account", "key"),
    [("a/../b", "account-a%2F..%2Fb"), ("é x", "account-%C3%A9%20x"), ("50%", "account-50%25"), (".", "account-.")],
)
def test_scope_keys_are_one_plain_name(policy_of: Make, account: str, key: str) -> None:
    grant = granted(policy_of(ACCOUNT), JOB._replace(account=account))
    assert grant.read_scopes[0] == key


@pytest.mark.threat(20)
@given(st.text(min_size=1), st.text(min_size=1))
def test_two_accounts_have_two_scope_keys(one: str, other: str) -> None:
    policy = BARE._replace(trust=BARE.trust._replace(account="enforced"), rules=(a_rule(scope="account"),))
    keys = [granted(policy, JOB._replace(account=account)).read_scopes[0] for account in (one, other)]
    assert (keys[0] == keys[1]) is (one == other)
    assert all(set(key) <= set("%-_.0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") for key in keys)


MODES = """\
  - {name: all, profiles: [numba]}
  - {name: watch, match: {partition: gpu}, mode: observe}
  - {name: canary, match: {node: n1}, mode: enforce}
  - {name: night, match: {qos: 'night*'}, mode: observe}
  - {name: day, match: {qos: 'day*'}, mode: enforce}
"""


@pytest.mark.parametrize(
    ("changes", "observed"),
    [
        ({"node": "n2", "partition": "cpu", "qos": "x"}, {"enforce": False, "observe": True}),
        ({"node": "n2", "partition": "gpu", "qos": "x"}, {"enforce": True, "observe": True}),
        ({"node": "n1", "partition": "gpu", "qos": "x"}, {"enforce": False, "observe": False}),
        ({"node": "n1", "partition": "gpu", "qos": "nightly"}, {"enforce": True, "observe": True}),
        ({"node": "n2", "partition": "gpu", "qos": "daytime"}, {"enforce": False, "observe": False}),
        # Not known: a rule that would observe holds, one that would enforce does not.
        ({"node": "n1", "partition": "gpu"}, {"enforce": True, "observe": True}),
    ],
)
def test_the_last_rule_with_a_mode_decides(
    compiled_of: Compile, changes: dict[str, str], observed: dict[str, bool]
) -> None:
    for mode, expected in observed.items():
        grant = granted(compiled_of(HEAD + MODES)._replace(mode=mode), a_job(**changes))  # type: ignore[arg-type]
        assert (grant.observed, grant.profiles) == (expected, ["numba"])


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (JOB._replace(no_warm=True), "it was submitted with --no-warm"),
        (JOB._replace(comment="warmstart: off"), "its comment says off"),
    ],
)
def test_a_job_that_wants_nothing_gets_nothing(policy_of: Make, job: Job, reason: str) -> None:
    policy = policy_of(ALL)
    grant = combine(policy, matching(policy, job, no_groups), job)
    assert grant == Grant([], [], {}, [], "", reason)


@pytest.mark.parametrize(
    "rules", ["", "  - {name: a, match: {node: n2}, images: ['docker://a.org/x:1'], env: {A: '1'}}\n"]
)
def test_a_job_that_no_rule_matches_is_left_alone(policy_of: Make, rules: str) -> None:
    assert granted(policy_of(rules), JOB) == Grant([], [], {}, [], "", NO_RULE)


@pytest.mark.parametrize(("job_id", "allocated"), [(0x03FFFFFF, True), (0xFFFEFFFF, True), (0xFFFF0000, False)])
def test_a_job_without_an_allocation_is_left_alone(policy_of: Make, job_id: int, *, allocated: bool) -> None:
    """What is made for `srun --no-allocate` would stay, because no epilog removes it."""
    grant = granted(policy_of(ALL), JOB._replace(id=job_id))
    assert (grant.profiles == ["numba"], "--no-allocate" in grant.reason) == (allocated, not allocated)


@pytest.mark.parametrize(
    ("uid", "reason"),
    [
        (0, "uid 0 is below limits.min_uid (1000)"),
        (999, "uid 999 is below limits.min_uid (1000)"),
        (2902, "uid 2902 is warmstart's own account warmstart-import"),
    ],
)
def test_system_accounts_get_nothing(policy_of: Make, uid: int, reason: str) -> None:
    policy = policy_of(ALL)
    policy = policy._replace(import_user=policy.import_user._replace(uid=2902))
    assert granted(policy, JOB._replace(uid=uid)) == Grant([], [], {}, [], "", reason)
    assert granted(policy, JOB).profiles == ["numba"]


def on_nodes(*globs: str) -> Match:
    """Return the condition of a rule for nodes of these names."""
    return Match(node=globs)


@pytest.mark.parametrize(("nodelist", "observed"), [("a1", False), ("a[1-2]", True), ("b1", True)])
def test_a_rule_for_nodes_enforces_for_jobs_of_one_node(nodelist: str, *, observed: bool) -> None:
    """On all other nodes nothing happens yet, and a job does the same on each of its nodes."""
    policy = BARE._replace(mode="observe", rules=(a_rule(), a_rule(mode="enforce", match=on_nodes("a*"))))
    job = JOB._replace(node=nodelist.partition("[")[0][:1] + "1", nodelist=nodelist)
    assert plan.grant(policy, job).observed is observed


BARE = defaults()


PRIVATE = """\
version: 1
paths: {store: /shared/warmstart}
images:
  registries: [a.org, b.org]
  credentials:
    file: /etc/warmstart/credentials.json
    repositories:
      - {name: team, repository: "a.org/team/*", match: {group: [team, leads]}}
      - {name: gpu, repository: "a.org/*", match: {partition: gpu}}
"""


@pytest.mark.threat(10)
@pytest.mark.parametrize(
    ("repository", "groups", "partition", "name"),
    [
        ("a.org/team/tool", ["team"], "gpu", "team"),
        ("a.org/team/tool", ["others"], "gpu", "gpu"),
        ("a.org/team/tool", ["others"], "cpu", ""),
        ("a.org/other/tool", ["team"], "cpu", ""),
        ("b.org/team/tool", ["team"], "gpu", ""),
        ("a.org.evil.org/team/tool", ["team"], "gpu", ""),
        ("evil.org/a.org/team/tool", ["team"], "gpu", ""),
    ],
)
def test_private_images_are_for_those_they_are_bound_to(
    compiled_of: Compile, repository: str, groups: list[str], partition: str, name: str
) -> None:
    """Row 10 of docs/threats.md: whoever is not bound to a repository gets what anybody gets, without credentials."""
    policy = compiled_of(PRIVATE)
    job = JOB._replace(partition=partition)
    assert private_repository(policy, job, lambda: groups, repository) == name


# The rules' `override`: variables that a job's user can't set for himself.


TWO_RULES = "version: 1\npaths: {store: /shared/warmstart}\nrules:\n  - {name: other, env: {OTHER: x}}\n  - name: a\n"


def test_what_rules_override_adds_up(compiled_of: Compile) -> None:
    rules = "    override: [OTHER, NUMBA_CACHE_DIR]\n  - {name: b, override: [TMPDIR]}\n"
    policy = compiled_of(f"{TWO_RULES}{rules}  - {{name: c, match: {{partition: x}}, override: [TMPDIR]}}\n")
    job = a_job(uid=2000)
    grant = combine(policy, matching(policy, job, list), job)
    assert grant.override == {"OTHER", "NUMBA_CACHE_DIR", "TMPDIR"}
