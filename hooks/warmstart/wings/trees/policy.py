"""The policy's `trees` and `rules[].trees`: keys, faults, and the form that hooks read. Never on a warm path."""

from __future__ import annotations

from collections.abc import Iterator

from warmstart.host.wire import Json
from warmstart.policy import shared_rules
from warmstart.policy.checks import FindUser, shared_prefixes
from warmstart.policy.document import Fault
from warmstart.policy.schema import Path, PolicyModel, Rule, Section, Size, key
from warmstart.policy.shared_rules import SharedDirectory
from warmstart.wings.trees.offered import KEY


class Trees(Section):
    """Directories on shared file systems that jobs read from packed copies ([trees](../wings/trees.md))."""

    prefixes: list[Path] = key(
        [],
        "Jobs may ask for directories below these, if root does not own them. Write each path without links, as "
        "`realpath` shows it. Without any, jobs may ask for none.",
    )
    max_size: Size = key("20GiB", "Bytes of one tree's files. A larger one is not packed.")
    keep: Size = key(
        "50GiB",
        "Packed copies that `warmstart maintain` leaves on a node, beside `seed.keep`. Least recently used copies go "
        "first, and none that a job reads. No tree is packed whose copy would be larger.",
    )


SECTIONS = {KEY: Trees}
RULE_KEYS: dict[str, tuple[object, object]] = {
    KEY: (
        list[SharedDirectory],
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
    """Yield faults of shared trees."""
    yield from shared_rules.faults(rule, model, find_user, KEY)


def of_policy(model: PolicyModel, find_user: FindUser) -> dict[str, Json]:  # noqa: ARG001 - the shape of all wings'
    """Return the section, if jobs may ask for trees."""
    given = _given(model)
    return {KEY: given.model_dump(mode="json")} if given.prefixes else {}


def of_rule(rule: Rule, find_user: FindUser) -> dict[str, Json]:
    """Return the trees that the rule's jobs share, in the form of `shared.SharedPath`."""
    shared: list[Json] = [shared_rules.form(rule, tree, find_user) for tree in _shared(rule)]
    return {KEY: shared} if shared else {}


def _given(model: PolicyModel) -> Trees:
    given = getattr(model, KEY)
    assert isinstance(given, Trees)
    return given


def _shared(rule: Rule) -> list[SharedDirectory]:
    given: list[SharedDirectory] = getattr(rule, KEY)
    return given
