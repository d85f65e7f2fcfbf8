"""Whose the copy of a tree is, and in which scope of the store it lies."""

from __future__ import annotations

from warmstart.policy.compiled import User
from warmstart.policy.shared import SharedPath
from warmstart.wings.trees.current import Look
from warmstart.wings.trees.place import Home, facts_of, home_of, place_of

OWN = "user-7-u"
TEAM = SharedPath("/l/proj/*", (User("pi", 3),), "account-p", "", "team")
SITE = SharedPath("/l/proj/sw/*", (User("sw", 2), User("root", 0)), "site", "", "all")
SEEN = Look("/l/proj/sw/env", "ab" * 32, 0.0, 2, 2)


def home(path: str) -> Home:
    """Return whose the copy of a tree is."""
    return home_of(path, (TEAM, SITE), OWN)


def test_a_tree_of_many_has_its_copy_in_their_scope() -> None:
    """Any other is its user's own."""
    assert home("/l/proj/a") == Home(TEAM.scope, TEAM)
    assert home("/l/proj/sw/a") == Home("site", SITE)
    assert home("/l/proj") == Home(OWN, None)


def test_a_copy_for_many_is_no_users_own() -> None:
    """Nor that of other owners: what was checked is part of its name."""
    fewer = SITE._replace(owners=SITE.owners[:1])
    assert facts_of(SEEN, SITE)["owners"] == "0 2"
    names = {place_of("/s", OWN, facts_of(SEEN, shared)).name for shared in (None, SITE, fewer)}
    assert len(names) == 3
