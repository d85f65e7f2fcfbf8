"""A rule's key for directories with one copy for many: what is refused, and the form that hooks read."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest

from tests.lib.policy_site import find_user
from warmstart.host import wire
from warmstart.policy.schema import Match, PolicyModel, Rule
from warmstart.policy.shared import SharedPath
from warmstart.policy.shared_rules import SharedDirectory, faults, form


def a_rule(match: dict[str, str], **changes: object) -> Rule:
    """Return a rule with one such directory, by the key `wing`."""
    known = {"path": "/l/sw/*", "owners": ["operator"], "scope": "site", **changes}
    directory = SharedDirectory.model_validate(known)
    return cast("Rule", SimpleNamespace(name="all", match=Match.model_validate(match), wing=[directory]))


def a_policy(trust: str) -> PolicyModel:
    """Return a policy with prefixes in its section `wing`."""
    trusted = SimpleNamespace(account=trust)
    return cast("PolicyModel", SimpleNamespace(trust=trusted, wing=SimpleNamespace(prefixes=["/l"])))


@pytest.mark.parametrize(
    ("change", "match", "problem"),
    [
        ({}, {}, ""),
        ({"path": "/l"}, {}, "/l is below none of wing.prefixes"),
        ({"path": "/l/a/"}, {}, "write /l/a, without"),
        ({"owners": ["ghost"]}, {}, "no user 'ghost' on this node"),
        ({"scope": "account"}, {}, "account needs trust.account: enforced"),
        ({}, {"account": "ml"}, "wing may not depend on a claimed attribute"),
    ],
)
def test_faults(change: dict[str, object], match: dict[str, str], problem: str) -> None:
    """None where the account is enforced and the path is below a prefix."""
    found = [fault.problem for fault in faults(a_rule(match, **change), a_policy("unproven"), find_user, "wing")]
    assert [problem in each for each in found] == ([True] if problem else [])
    assert not problem or len(found) == 1
    assert "account" not in problem or not [*faults(a_rule(match, **change), a_policy("enforced"), find_user, "wing")]


def test_hooks_read_it_as_it_was_written() -> None:
    """With uids, and the rule's name."""
    rule = a_rule({}, owners=["operator", "root"])
    (item,) = cast("list[SharedDirectory]", getattr(rule, "wing"))  # noqa: B009 - no attribute of a rule
    found = wire.decode(SharedPath, form(rule, item, find_user))
    assert found == ("/l/sw/*", (("operator", 800), ("root", 0)), "site", "all")
