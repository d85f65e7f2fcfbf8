"""Whose the copy of a tree is, and in which scope of the store it lies."""

from __future__ import annotations

from tests.support.policy_site import defaults
from warmstart.policy.compiled import Policy, User
from warmstart.policy.shared import SharedPath
from warmstart.wings.trees.current import Look
from warmstart.wings.trees.place import Home, facts_of, home_of, place_of

OWN = "user-7-u"
TEAM = SharedPath("/l/proj/*", (User("pi", 3),), "account-p", "", "team")
SITE = SharedPath("/l/proj/sw/*", (User("sw", 2), User("root", 0)), "site", "", "all")
BARE = defaults()
GUARDED = BARE._replace(guards={"site": "a-wing"})
SEEN = Look("/l/proj/sw/env", "ab" * 32, 0.0, 2, 2)


def home(path: str, policy: Policy = BARE, *, guarded_only: bool = False) -> Home:
    """Return whose the copy of a tree is."""
    return home_of(path, (TEAM, SITE), OWN, policy, guarded_only=guarded_only)


def test_a_tree_of_many_has_its_copy_in_their_scope() -> None:
    """Any other is its user's own."""
    assert home("/l/proj/a") == Home([TEAM.scope], TEAM.scope, TEAM)
    assert home("/l/proj/sw/a") == Home(["site"], "site", SITE)
    assert home("/l/proj") == Home([OWN], OWN, None)


def test_a_guarded_scope_is_read_and_not_written() -> None:
    """A job that takes nothing else has no copy elsewhere."""
    assert home("/l/proj/sw/a", GUARDED) == Home(["site", OWN], OWN, SITE)
    assert home("/l/proj/sw/a", GUARDED, guarded_only=True) == Home(["site"], OWN, SITE)
    assert home("/l/proj/a", GUARDED, guarded_only=True).read == []
    assert home("/l/own", GUARDED, guarded_only=True).read == []


def test_a_copy_for_many_is_no_users_own() -> None:
    """Nor that of other owners: what was checked is part of its name."""
    fewer = SITE._replace(owners=SITE.owners[:1])
    assert facts_of(SEEN, SITE)["owners"] == "0 2"
    names = {place_of("/s", OWN, facts_of(SEEN, shared)).name for shared in (None, SITE, fewer)}
    assert len(names) == 3
