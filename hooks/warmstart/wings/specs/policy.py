"""The policy's `slurmctld`: its keys, their faults, and the form that hooks read. Never on a warm path."""

from __future__ import annotations

from collections.abc import Iterator

from warmstart.host.wire import Json
from warmstart.policy.checks import ACCOUNTS, FindUser, not_normal, within
from warmstart.policy.document import Fault
from warmstart.policy.load import existing
from warmstart.policy.schema import Account, Duration, Path, PolicyModel, Rule, Section, key
from warmstart.wings.specs.keys import KEY, Keys


class Slurmctld(Section):
    """Optional hooks on the controller tell nodes what slurmd does not ([how](../wings/specs.md))."""

    spec_directory: Path | None = key(
        None,
        "Directory on the shared file system where the hooks write job specs. `user` owns it, mode 0755. "
        "`null`: nodes look for no specs.",
    )
    user: Account = key("slurm", "SlurmUser. Specs of any other owner are ignored.")
    deadline: Duration = key("2s", "How long a job waits for slurmctld's answer, and a node's prolog for the spec.")
    conf: Path | None = key(None, "`slurm.conf` on the controller, if Slurm does not find it by itself.")


SECTIONS = {KEY: Slurmctld}
RULE_KEYS: dict[str, tuple[object, object]] = {}


def faults(model: PolicyModel, find_user: FindUser) -> Iterator[Fault]:
    """Yield faults of accounts that are SlurmUser's, and of a directory that others can own."""
    given = _given(model)
    user = find_user(given.user)
    for account in ACCOUNTS:
        if user is not None and find_user(name := getattr(model, account)) == user:
            yield Fault((account,), f"{name!r} is SlurmUser, who owns Slurm's state; each account needs its own")
    directory = given.spec_directory
    if directory is None:
        return
    loc = (KEY, "spec_directory")
    if problem := not_normal(directory):
        yield Fault(loc, problem)
    for path in ("store", "workspace", "cache"):
        if within(directory, getattr(model.paths, path)):
            problem = f"may not be in paths.{path}: only {given.user} or root may own it and every directory above it"
            yield Fault(loc, problem)
    if user is None:
        yield Fault((KEY, "user"), f"no account {given.user!r} on this node")


def rule_faults(rule: Rule, model: PolicyModel, find_user: FindUser) -> Iterator[Fault]:  # noqa: ARG001 - all wings' shape
    """Yield nothing: no key of a rule is this wing's."""
    yield from ()


def of_policy(model: PolicyModel, find_user: FindUser) -> dict[str, Json]:
    """Return the keys, if there are specs."""
    given = _given(model)
    if given.spec_directory is None:
        return {}
    found = Keys(given.spec_directory, existing(find_user, given.user), given.deadline, given.conf)
    return {KEY: {**found._asdict(), "user": list(found.user)}}


def of_rule(rule: Rule, find_user: FindUser) -> dict[str, Json]:  # noqa: ARG001 - as above
    """Return nothing: no key of a rule is this wing's."""
    return {}


def _given(model: PolicyModel) -> Slurmctld:
    given = getattr(model, KEY)
    assert isinstance(given, Slurmctld)
    return given
