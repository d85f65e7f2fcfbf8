"""The policy's `launchers`: its keys, their faults, and the form that imports read. Never on a warm path."""

from __future__ import annotations

from collections.abc import Iterator

from warmstart.host.wire import Json
from warmstart.policy.checks import FindUser, not_normal, within
from warmstart.policy.document import Fault
from warmstart.policy.schema import Path, PolicyModel, Rule, Section, key
from warmstart.wings.launchers.places import KEY


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


SECTIONS = {KEY: Launchers}
RULE_KEYS: dict[str, tuple[object, object]] = {}


def faults(model: PolicyModel, find_user: FindUser) -> Iterator[Fault]:  # noqa: ARG001 - all wings' shape
    """Yield faults of the directory: it is missing, or overlaps with warmstart's own."""
    given = _given(model)
    if given.lock and given.directory is None:
        yield Fault((KEY, "lock"), "needs launchers.directory, where the locks are")
    if given.directory is None:
        return
    if problem := not_normal(given.directory):
        yield Fault((KEY, "directory"), problem)
    for name, ours in (("store", model.paths.store), ("workspace", model.paths.workspace)):
        if within(given.directory, ours) or within(ours, given.directory):
            yield Fault((KEY, "directory"), f"may not be in paths.{name} ({ours}) or contain it")


def rule_faults(rule: Rule, model: PolicyModel, find_user: FindUser) -> Iterator[Fault]:  # noqa: ARG001 - all wings' shape
    """Yield nothing: no key of a rule is this wing's."""
    yield from ()


def of_policy(model: PolicyModel, find_user: FindUser) -> dict[str, Json]:  # noqa: ARG001 - as above
    """Return the keys, if a directory is given."""
    given = _given(model)
    return {KEY: {"directory": given.directory, "lock": given.lock}} if given.directory is not None else {}


def of_rule(rule: Rule, find_user: FindUser) -> dict[str, Json]:  # noqa: ARG001 - as above
    """Return nothing: no key of a rule is this wing's."""
    return {}


def _given(model: PolicyModel) -> Launchers:
    given = getattr(model, KEY)
    assert isinstance(given, Launchers)
    return given
