"""Probable mistakes of a policy that hooks accept."""

from __future__ import annotations

from typing import Any

import pytest

from warmstart.policy.schema import PolicyModel, check_shape
from warmstart.policy.warnings import Known, warnings

KNOWN = Known(
    frozenset({"gpu", "gpu-big", "cpu"}),
    frozenset({"n1", "n2"}),
    lambda name: name == "alice",
    lambda name: name == "team",
)
PUBLISHER = {
    "name": "ci", "match": {"partition": "ci", "user": "svc"}, "scope": "account", "publish": {"users": ["svc"]},
}  # fmt: skip


def found(*rules: dict[str, Any], known: Known = KNOWN) -> list[tuple[object, ...]]:
    """Return the locs below `rules` and the problems of a policy with these rules."""
    named = [{"name": f"r{number}", **rule} for number, rule in enumerate(rules)]
    model = check_shape({"version": 1, "paths": {"store": "/s"}, "rules": named})
    assert isinstance(model, PolicyModel)
    return [(*fault.loc[1:], fault.problem) for fault in warnings(model, known)]


def test_what_a_rule_does_not_bring() -> None:
    """No shell reads `env`, and without a constant path some profiles do nothing."""
    ((*loc, problem),) = found({"env": {"A": "$HOME/x", "B": "5$", "C": "a$1"}})
    assert (loc, "no shell expands" in str(problem)) == ([0, "env", "A"], True)
    ((*loc, problem),) = found({"profiles": ["numba", "torch-extensions"]})
    assert (loc, "needs a constant path" in str(problem)) == ([0, "profiles", 1], True)


def test_a_profile_that_was_never_run_with_its_tool() -> None:
    """Whoever gives it to everybody should try it first. A site's own profile is the site's business."""
    ((*loc, problem),) = found({"profiles": ["numba", "deepgemm"]})
    assert (loc, "experimental" in str(problem)) == ([0, "profiles", 1], True)


def test_a_tool_that_takes_others_caches_along() -> None:
    """SGLang makes FlashInfer use a directory of its own, unless it has another."""
    told = [str(problem) for *_, problem in found({"profiles": ["sglang"]}) if "moves" in str(problem)]
    assert [problem.split("'s")[0] for problem in told] == ["sglang moves flashinfer"]
    both = {"profiles": ["sglang", "flashinfer"]}
    assert [problem for *_, problem in found(both) if "moves" in str(problem)] == []


@pytest.mark.parametrize(
    "sections",
    [
        {"maintenance": {"keep": "1d"}},
        {"images": {"keep": {"lease": "1d"}}},
    ],
)
def test_limits_that_fit(sections: dict[str, Any]) -> None:
    """A default above another key is no mistake of whoever wrote that one."""
    model = check_shape({"version": 1, "paths": {"store": "/s"}, "rules": [{"name": "a"}], **sections})
    assert isinstance(model, PolicyModel)
    assert list(warnings(model, KNOWN)) == []


def test_keys_that_undo_each_other() -> None:
    """What waits for a job's good end is not harvested while it runs."""
    toy = {"variables": {"TOY": "{dir}"}, "entries": ["*"], "relocation": "relocatable", "only_successful": True}
    sections: dict[str, Any] = {"harvest": {"while_running": "15m", "only_successful": True}, "profiles": {"toy": toy}}
    rules = [{"name": "a", "profiles": ["toy"]}]
    model = check_shape({"version": 1, "paths": {"store": "/s"}, "rules": rules, **sections})
    assert isinstance(model, PolicyModel), model
    assert [fault.loc for fault in warnings(model, KNOWN)] == [
        ("harvest", "while_running"),
        ("profiles", "toy", "only_successful"),
    ]


def test_a_policy_without_rules() -> None:
    """It does nothing, and looks as if it did."""
    assert found() == [("no rules: no job gets anything of warmstart",)]


@pytest.mark.parametrize(
    "match",
    [
        {"partition": ["gpu*", "cpu"]}, {"node": "n[1-12]"}, {"user": ["alice", "a*"]}, {"group": "team"},
        {"account": "any", "qos": "any"},
    ],
)  # fmt: skip
def test_names_that_there_are(match: dict[str, Any]) -> None:
    """Patterns of users are not judged: a directory server may list nobody. Accounts and QOS are Slurm's."""
    assert found({"match": match}) == []


@pytest.mark.parametrize(
    ("match", "expected"),
    [
        ({"partition": "gpus"}, "no partition 'gpus' on this cluster; did you mean gpu?: the rule can never match"),
        ({"partition": ["gpu", "x*"]}, "no partition 'x*' on this cluster; allowed: cpu, gpu, gpu-big"),
        ({"node": "m1"}, "no node 'm1' on this cluster; allowed: n1, n2: the rule can never match"),
        ({"user": "bob"}, "no user 'bob' on this cluster: the rule can never match"),
        ({"group": "teams"}, "no group 'teams' on this cluster: the rule can never match"),
    ],
)
def test_names_that_nothing_has(match: dict[str, Any], expected: str) -> None:
    """A rule of which no name is known can never match."""
    ((*_, problem),) = found({"match": match})
    assert problem == expected
    assert found({"match": match}, known=Known()) == []


def test_accounts_where_nothing_keeps_them() -> None:
    """A job has what its user writes."""
    none = KNOWN._replace(has_accounts=False)
    told = found({"match": {"account": "a"}}, {"match": {"qos": "a"}}, known=none)
    assert [loc[:3] for loc in told] == [(0, "match", "account"), (1, "match", "qos")]


def test_a_scope_that_somebody_publishes_to() -> None:
    """A rule does."""
    publisher = PUBLISHER | {
        "match": {"partition": "gpu", "user": "alice"},
        "scope": "site",
        "publish": {"users": ["a"]},
    }
    assert found(publisher, {"scope": "site"}) == []
    assert len(found({"scope": "site"}, {"scope": "user"})) == 1


@pytest.mark.parametrize(
    ("glob", "better"),
    [
        ("gpu.*", "; write 'gpu*'"),
        ("^gpu$", "; write 'gpu'"),
        ("a|b", ""),
        ("(gpu|cpu)", ""),
        (r"n\d+", ""),
        ("gpu.+", "; write 'gpu*'"),
    ],
)
def test_regular_expressions(glob: str, better: str) -> None:
    """They match nothing, or something else."""
    ((*loc, problem),) = found({"match": {"account": ["ok", glob]}})
    assert loc == [0, "match", "account", 1]
    assert str(problem).endswith(f"looks like a regular expression; patterns have * only{better}")


@pytest.mark.parametrize(
    ("later", "is_told"),
    [
        ({"scope": "user"}, True),
        ({"scope": "user", "match": {"partition": "*"}}, True),
        ({"scope": "user", "match": {"partition": "c*", "user": "svc"}}, True),
        ({"scope": "user", "match": {"partition": "gpu"}}, False),
        ({"scope": "user", "match": {"group": "team"}}, False),
        ({"scope": "account"}, False),
        ({"profiles": ["numba"]}, False),
    ],
)
def test_a_later_rule_that_revokes_publishing(later: dict[str, Any], is_told: bool) -> None:
    """Only the last matching rule's scope counts; told where that rule is for all of the publisher's jobs."""
    problems = found(PUBLISHER, later, known=Known())
    assert [problem for *_, problem in problems if "revokes the publish of rule ci" in str(problem)] == [
        problem for *_, problem in problems
    ]
    assert bool(problems) is is_told
    assert found(later, PUBLISHER, known=Known()) == []
