"""What the policy says of trees, and which of them a job shares with others."""

from __future__ import annotations

import pytest

from tests.lib.policy_site import MINIMAL, Compile, Site, defaults, offering, refusals
from tests.lib.runs import a_job
from warmstart import wing
from warmstart.policy.match import combine, matching
from warmstart.policy.shared import granted
from warmstart.wings.trees import policy as part
from warmstart.wings.trees.offered import KEY, Trees, offered

PREFIXES = "trees: {prefixes: [/lustre]}\n"
TREES = """\
version: 1
paths: {store: /shared/warmstart}
trust: {account: enforced}
trees: {prefixes: [/lustre]}
rules:
  - {name: site, trees: [{path: /lustre/sw/*, owners: [operator, root], scope: site}]}
  - {name: ml, match: {account: ml-*}, trees: [{path: /lustre/ml, owners: [svc_ml], scope: account}]}
"""


def test_hooks_read_the_section_where_there_are_prefixes(compiled_of: Compile) -> None:
    bare, policy = compiled_of(MINIMAL), compiled_of(MINIMAL + PREFIXES)
    assert offered(bare) == Trees()
    assert offered(policy) == Trees(("/lustre",), 20 << 30, 50 << 30)
    used = {found.used: found.keep for of in (bare, policy) for found in of.wings if found.name == "trees"}
    assert used == {False: 0, True: 50 << 30}


@pytest.mark.parametrize(
    ("prefix", "words"),
    [("/usr/local", "below /usr"), ("/shared", "in paths.store nor above it"), ("/lustre/", "without '..'")],
)
def test_prefixes_are_nobody_elses(site: Site, prefix: str, words: str) -> None:
    """A job sees a copy in place of what is below one."""
    (problem,) = refusals(site, f"{MINIMAL}trees: {{prefixes: [{prefix}]}}\n")
    assert problem.startswith("3:20: trees.prefixes[0]: ")
    assert words in problem


@pytest.mark.parametrize(
    ("match", "changes", "key", "words"),
    [
        ("", {"scope": "account"}, "trees[0].scope", "needs trust.account: enforced"),
        ("", {"scope": "user"}, "trees[0].scope", "expected 'account' or 'site'"),
        ("", {"owners": "[ghost]"}, "trees[0].owners[0]", "no user 'ghost'"),
        ("", {"owners": "[]"}, "trees[0].owners", "is empty"),
        ("", {"path": "/lustre/sw/"}, "trees[0].path", "without '..'"),
        ("", {"path": "/lustrous"}, "trees[0].path", "below none of trees.prefixes"),
        ("", {"path": "/lustre"}, "trees[0].path", "below none of trees.prefixes"),
        ("account: ml", {"path": "/lustre/*/env"}, "match.account", "claimed attribute"),
    ],
)
def test_trees_of_many_are_owned_and_below_a_prefix(
    site: Site, match: str, changes: dict[str, str], key: str, words: str
) -> None:
    tree = {"path": "/lustre/sw", "owners": "[root]", "scope": "site", **changes}
    keys = ", ".join(f"{name}: {value}" for name, value in tree.items())
    (problem,) = refusals(
        site, f"{MINIMAL}{PREFIXES}rules:\n  - {{name: a, match: {{{match}}}, trees: [{{{keys}}}]}}\n"
    )
    assert f" rules[0].{key}: " in problem
    assert words in problem


@pytest.mark.parametrize(
    "prefix", ["/opt", "/opt/site/lib/warmstart/1", "/opt/site/var/lib/warmstart", "/opt/site/etc"]
)
def test_a_tree_is_none_of_warmstarts_own_directories(monkeypatch: pytest.MonkeyPatch, prefix: str) -> None:
    """Those of an installation below a prefix of its own, which the code's path tells."""
    policy = offering(defaults(), trees={"prefixes": [prefix]})
    assert [*part.faults(policy)] == []
    monkeypatch.setattr(wing, "FOLDER", "/opt/site/lib/warmstart/releases/1/warmstart/wings")
    (fault,) = part.faults(policy)
    assert fault.problem.startswith("may be neither below /opt/site/")


@pytest.mark.parametrize(("account", "rules"), [("ml-1", ["site", "ml"]), ("bio", ["site"])])
def test_trees_of_all_matching_rules_add_up(compiled_of: Compile, account: str, rules: list[str]) -> None:
    policy, job = compiled_of(TREES), a_job(account=account)
    shared = granted(policy, job, combine(policy, matching(policy, job, list), job), KEY)
    assert shared[0] == ("/lustre/sw/*", (("operator", 800), ("root", 0)), "site", "site")
    assert shared[1:] in ((), (("/lustre/ml", (("svc_ml", 1501),), "account-ml-1", "ml"),))
    assert [tree.rule for tree in shared] == rules
