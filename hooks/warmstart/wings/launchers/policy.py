"""The policy's `launchers`: its keys, their faults, and the form that imports read. Never on a warm path."""

from __future__ import annotations

from collections.abc import Iterator

from warmstart.host.wire import Json
from warmstart.policy.checks import FindUser, not_normal, within
from warmstart.policy.document import Fault, Loc
from warmstart.policy.load import existing
from warmstart.policy.schema import Path, PolicyModel, Rule, Section, User, key, required
from warmstart.wings.launchers.places import KEY


class Adopt(Section):
    """A directory whose images, made by launchers, are copied into the store."""

    directory: Path = required("Only the owners, `store_user` and root may be able to write it or a parent.")
    owners: list[User] = required("Users whose files are adopted. Each must exist on the node.", min_length=1)


class Launchers(Section):
    """Launchers that keep each image as `NAME.sqsh` ([launchers](../wings/launchers.md))."""

    directory: Path | None = key(
        None,
        "Directory where launchers look for `NAME.sqsh`. warmstart keeps links there if only `store_user` and root can "
        "write it.",
    )
    lock: bool = key(
        False,
        "An import also holds `NAME.sqsh.lock` in `directory` for part of its time, as launchers that use `flock(1)` "
        "do. Needs `directory`.",
    )
    adopt: list[Adopt] = key(
        [], "Directories whose images, made by launchers, are copied into the store, for references by tag."
    )


SECTIONS = {KEY: (Launchers, Launchers())}
RULE_KEYS: dict[str, tuple[object, object]] = {}


def faults(model: PolicyModel, find_user: FindUser) -> Iterator[Fault]:
    """Yield faults of directories: a missing one, those that overlap with warmstart's own, and unknown owners."""
    given = _given(model)
    if given.lock and given.directory is None:
        yield Fault((KEY, "lock"), "needs launchers.directory, where the locks are")
    directories: list[tuple[Loc, str]] = [((KEY, "directory"), given.directory)] if given.directory else []
    directories += [((KEY, "adopt", number, "directory"), item.directory) for number, item in enumerate(given.adopt)]
    for loc, path in directories:
        if problem := not_normal(path):
            yield Fault(loc, problem)
        for name, ours in (("store", model.paths.store), ("workspace", model.paths.workspace)):
            if within(path, ours) or within(ours, path):
                yield Fault(loc, f"may not be in paths.{name} ({ours}) or contain it")
    for number, item in enumerate(given.adopt):
        for index, owner in enumerate(item.owners):
            if find_user(owner) is None:
                yield Fault((KEY, "adopt", number, "owners", index), f"no user {owner!r} on this node")


def rule_faults(rule: Rule, model: PolicyModel, find_user: FindUser) -> Iterator[Fault]:  # noqa: ARG001 - all wings' shape
    """Yield nothing: no key of a rule is this wing's."""
    yield from ()


def of_policy(model: PolicyModel, find_user: FindUser) -> dict[str, Json]:
    """Return the keys, if any is given."""
    given = _given(model)
    if given.directory is None and not given.adopt:
        return {}
    adopt = [[item.directory, [existing(find_user, name).uid for name in item.owners]] for item in given.adopt]
    return {KEY: {"directory": given.directory, "lock": given.lock, "adopt": adopt}}


def of_rule(rule: Rule, find_user: FindUser) -> dict[str, Json]:  # noqa: ARG001 - as above
    """Return nothing: no key of a rule is this wing's."""
    return {}


def _given(model: PolicyModel) -> Launchers:
    given = getattr(model, KEY)
    assert isinstance(given, Launchers)
    return given
