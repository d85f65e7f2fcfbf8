"""A wing's key of rules for directories that share one copy: its form, and its faults. Never on a warm path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from warmstart.host.wire import Json
from warmstart.policy.checks import FindUser, claimed, not_normal
from warmstart.policy.document import Fault
from warmstart.policy.schema import PolicyModel, Rule, Section, User, in_schema, matching, required

PATH_PATTERN = r"/[A-Za-z0-9_.@+=%/*-]{1,1023}"
SharedGlob = Annotated[
    str,
    matching(PATH_PATTERN, "an absolute path of letters, digits and _.@+=%-/, and of *"),
    in_schema("path pattern", PATH_PATTERN),
]


class SharedDirectory(Section):
    """Directories with one copy for many."""

    path: SharedGlob = required(
        "The directory's path without links, below one of the section's `prefixes`; `*` stands for any part of a "
        "name: `/sw/envs/*`."
    )
    owners: list[User] = required(
        "Whose files such a directory may have, besides root's.",
        min_length=1,
    )
    scope: Literal["account", "site"] = required(
        "Whose one copy it is: each account's, which needs `trust.account: enforced`, or the site's."
    )


def faults(rule: Rule, model: PolicyModel, find_user: FindUser, key: str) -> Iterator[Fault]:
    """Yield faults of a rule's `key`: a path below no prefix, an owner that is no user, a claimed attribute.

    The policy's section of that name has `prefixes`.
    """
    shared: list[SharedDirectory] = getattr(rule, key)
    prefixes: list[str] = getattr(model, key).prefixes
    for number, item in enumerate(shared):
        loc = (key, number)
        if problem := not_normal(item.path):
            yield Fault((*loc, "path"), problem)
        if not any(item.path.startswith(f"{prefix}/") for prefix in prefixes):
            yield Fault((*loc, "path"), f"{item.path} is below none of {key}.prefixes")
        for index, name in enumerate(item.owners):
            if find_user(name) is None:
                yield Fault((*loc, "owners", index), f"no user {name!r} on this node")
        if item.scope == "account" and model.trust.account != "enforced":
            problem = "account needs trust.account: enforced; otherwise users choose their account"
            yield Fault((*loc, "scope"), problem)
    if shared:
        yield from claimed(model, rule.match, key, "user, group, node or partition")


def form(rule: Rule, item: SharedDirectory, find_user: FindUser) -> Json:
    """Return a directory that a rule names, in the form of `shared.SharedPath`."""
    owners: list[Json] = [[*user[:2]] for name in item.owners if (user := find_user(name))]
    return [item.path, owners, item.scope, rule.name]
