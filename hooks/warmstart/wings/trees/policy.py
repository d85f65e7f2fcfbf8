"""The policy's `trees` and `rules[].trees`: keys, faults, and the form that hooks read. Never on a warm path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from warmstart.host.wire import Json
from warmstart.policy.checks import FindUser, claimed, not_normal, shared_prefixes
from warmstart.policy.document import Fault
from warmstart.policy.schema import (
    Account,
    Duration,
    Path,
    PolicyModel,
    Rule,
    Section,
    Size,
    in_schema,
    key,
    matching,
    required,
)
from warmstart.wings.trees.offered import KEY

PATH_PATTERN = r"/[A-Za-z0-9_.@+=%/*-]{1,1023}"
MARKER = r"(?!.*//|(.*/)?\.\.?(/|$))[A-Za-z0-9_.@+=%-][A-Za-z0-9_.@+=%/-]{0,254}"
TreePath = Annotated[
    str,
    matching(PATH_PATTERN, "an absolute path of letters, digits and _.@+=%-/, and of *"),
    in_schema("path pattern", PATH_PATTERN),
]
TreeMarker = Annotated[
    str,
    matching(MARKER, "a path in a tree, of letters, digits and _.@+=%-/"),
    in_schema("path in the tree", MARKER),
]


class Trees(Section):
    """Directories on shared file systems that jobs read from packed copies ([trees](../wings/trees.md))."""

    prefixes: list[Path] = key(
        [],
        "Jobs may ask for directories below these, if root does not own them. Write each path without links, as "
        "`realpath` shows it. Without any, jobs may ask for none.",
    )
    max_size: Size = key("20GiB", "Bytes of one tree's files. A larger one is not packed.")
    max_files: int = key(1_000_000, "Files and directories of one tree. One with more is not packed.", ge=1)
    compare: Duration | None = key(
        "24h",
        "How often a copy that nodes have is compared with its tree, name by name, at a low pace ([what it "
        "finds](../wings/trees.md#what-no-marker-shows)). `null`: never.",
    )
    keep: Size = key(
        "50GiB",
        "Packed copies that `warmstart maintain` leaves on a node, beside `seed.keep`. Least recently used copies go "
        "first, and none that a job reads. No tree is packed whose copy would be larger.",
    )


class SharedTree(Section):
    """Trees with one copy for many ([trees](../wings/trees.md#trees-of-an-account-or-the-site))."""

    path: TreePath = required(
        "The tree's path without links, below one of `trees.prefixes`; `*` stands for any part of a name: `/sw/envs/*`."
    )
    owners: list[Account] = required(
        "Whose files such a tree may have, besides root's. A tree that is root's itself needs `root` here.",
        min_length=1,
    )
    scope: Literal["account", "site"] = required(
        "Whose one copy it is: each account's, which needs `trust.account: enforced`, or the site's."
    )
    marker: TreeMarker | None = key(
        None,
        "A file in the tree that changes with it, for one that neither pip, uv nor conda has made. What the job names "
        "does not count.",
    )


SECTIONS: dict[str, tuple[object, object]] = {KEY: (Trees, Trees())}
RULE_KEYS: dict[str, tuple[object, object]] = {
    KEY: (
        list[SharedTree],
        key(
            [],
            "Trees that these jobs [share](../wings/trees.md#trees-of-an-account-or-the-site). Several rules add up; "
            "of those that cover a tree, the last one counts. `match` may use verified attributes only.",
        ),
    )
}


def faults(model: PolicyModel, find_user: FindUser) -> Iterator[Fault]:  # noqa: ARG001 - the shape of all wings'
    """Yield prefixes that are the system's, or warmstart's: a job sees a copy in place of what is below one."""
    yield from shared_prefixes(model, KEY, _given(model).prefixes)


def rule_faults(rule: Rule, model: PolicyModel, find_user: FindUser) -> Iterator[Fault]:
    """Yield faults of shared trees: a path below no prefix, an owner that is no user, a claimed attribute."""
    for number, tree in enumerate(_shared(rule)):
        loc = (KEY, number)
        if problem := not_normal(tree.path):
            yield Fault((*loc, "path"), problem)
        if not any(tree.path.startswith(f"{prefix}/") for prefix in _given(model).prefixes):
            yield Fault((*loc, "path"), f"{tree.path} is below none of trees.prefixes")
        for index, name in enumerate(tree.owners):
            if find_user(name) is None:
                yield Fault((*loc, "owners", index), f"no user {name!r} on this node")
        if tree.scope == "account" and model.trust.account != "enforced":
            problem = "account needs trust.account: enforced; otherwise users choose their account"
            yield Fault((*loc, "scope"), problem)
    if _shared(rule):
        yield from claimed(model, rule.match, KEY, "user, group, node or partition")


def of_policy(model: PolicyModel, find_user: FindUser) -> dict[str, Json]:  # noqa: ARG001 - the shape of all wings'
    """Return the section, if jobs may ask for trees."""
    given = _given(model)
    return {KEY: given.model_dump(mode="json")} if given.prefixes else {}


def of_rule(rule: Rule, find_user: FindUser) -> dict[str, Json]:
    """Return the trees that the rule's jobs share, in the form of `offered.SharedTree`."""
    shared = []
    for tree in _shared(rule):
        owners = [[*user[:2]] for name in tree.owners if (user := find_user(name))]
        shared.append([tree.path, owners, tree.scope, tree.marker or "", rule.name])
    return {KEY: shared} if shared else {}


def _given(model: PolicyModel) -> Trees:
    given = getattr(model, KEY)
    assert isinstance(given, Trees)
    return given


def _shared(rule: Rule) -> list[SharedTree]:
    given: list[SharedTree] = getattr(rule, KEY)
    return given
