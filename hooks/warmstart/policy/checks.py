"""What must hold between the policy's keys: possible paths, known names, rights on verified attributes.

Binding: design, rules 3, 4 and 5; threats 3 (rights on free text), 9 (laundering through a publisher)
and 10 (registries). Each check yields faults; none stops at the first.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

from warmstart.host.worker import Identity
from warmstart.policy.explain import Fault, Loc, dotted, nearest
from warmstart.policy.model import PolicyModel, Rule

FindUser = Callable[[str], "Identity | None"]
ACCOUNTS = ("store_user", "import_user", "validate_user")
NEVER_INSIDE = (
    ("workspace", "store"),
    ("store", "workspace"),
    ("audit", "store"),
    ("audit", "workspace"),
)
# Under job_container/tmpfs a job cannot see what lies there, and anybody can take a name there first.
NEVER_BELOW = ("/tmp", "/dev", "/proc", "/sys")


def faults(model: PolicyModel, profiles: Sequence[str], find_user: FindUser) -> list[Fault]:
    """Return every fault of a well-shaped policy; `profiles` are the names that exist."""
    return [
        *_paths(model),
        *_accounts(model, find_user),
        *_registries(model),
        *_rule_names(model),
        *(
            _fault(("rules", number, *found.loc), found.problem, found.at_key)
            for number, rule in enumerate(model.rules)
            for found in _in_rule(rule, model, profiles, find_user)
        ),
    ]


def _in_rule(rule: Rule, model: PolicyModel, profiles: Sequence[str], find_user: FindUser) -> Iterator[Fault]:
    """Yield one rule's faults, their locs relative to the rule."""
    yield from _profiles(rule, profiles)
    yield from _scope(rule, model)
    yield from _publish(rule)
    yield from _publishers(rule, model, find_user)
    yield from _images(rule, model)
    yield from _environment(rule)


def _fault(loc: Loc, problem: str, at_key: bool = False) -> Fault:
    return Fault(loc, f"{dotted(loc)}: {problem}", at_key)


def _paths(model: PolicyModel) -> Iterator[Fault]:
    paths: dict[str, str] = model.paths.model_dump()
    for key, path in paths.items():
        loc = ("paths", key)
        if os.path.normpath(path) != path:
            yield _fault(loc, f"write {os.path.normpath(path)}, without '..', '//' or a trailing '/'")
        for bad in NEVER_BELOW:
            if _within(path, bad):
                yield _fault(loc, f"may not lie below {bad}")
    for inner, outer in (
        ("workspace", "store"),
        ("store", "workspace"),
        ("audit", "store"),
        ("audit", "workspace"),
    ):
        if _within(paths[inner], paths[outer]):
            yield _fault(("paths", inner), f"may not lie in paths.{outer} ({paths[outer]})")


def _within(path: str, directory: str) -> bool:
    return f"{path}/".startswith(f"{directory}/")


def _accounts(model: PolicyModel, find_user: FindUser) -> Iterator[Fault]:
    seen: dict[int, str] = {}
    for key in ACCOUNTS:
        name = getattr(model, key)
        found = find_user(name)
        if found is None:
            yield _fault((key,), f"no account {name!r} on this node; `make install` tells how to create it")
        elif found.uid == 0 or found.gid == 0:
            yield _fault((key,), f"{name!r} has root's uid or group; it must be an unprivileged account")
        elif found.uid in seen:
            yield _fault((key,), f"{name!r} has the uid of {seen[found.uid]}; each needs an own one")
        else:
            seen[found.uid] = key


def _registries(model: PolicyModel) -> Iterator[Fault]:
    for number, registry in enumerate(model.images.insecure):
        if registry not in model.images.registries:
            yield _fault(("images", "insecure", number), f"{registry} is not in images.registries")


def _rule_names(model: PolicyModel) -> Iterator[Fault]:
    seen: set[str] = set()
    for number, rule in enumerate(model.rules):
        if rule.name in seen:
            yield _fault(("rules", number, "name"), f"another rule is called {rule.name}, too")
        seen.add(rule.name)


def _profiles(rule: Rule, profiles: Sequence[str]) -> Iterator[Fault]:
    for number, name in enumerate(rule.profiles):
        if name not in profiles:
            yield Fault(("profiles", number), f"no profile {name!a}; {nearest(name, profiles)}")


def _scope(rule: Rule, model: PolicyModel) -> Iterator[Fault]:
    above_user = rule.scope in ("account", "site")
    enforced = model.trust.account == "enforced"
    if rule.scope == "account" and not enforced:
        yield Fault(("scope",), "account needs trust.account: enforced; else users choose their account")
    if above_user and rule.match.account is not None and not enforced:
        yield Fault(
            ("match", "account"),
            f"scope {rule.scope} may not rest on a claimed attribute; match on user, group, node or "
            "partition, or set trust.account: enforced where slurmctld enforces associations",
            at_key=True,
        )


def _publish(rule: Rule) -> Iterator[Fault]:
    if rule.publish is None:
        return
    if rule.scope not in ("account", "site"):
        yield Fault(("publish",), "needs scope: account or scope: site in the same rule", at_key=True)
    if rule.match.partition is None:
        yield Fault(("publish",), "needs match.partition in the same rule: where they may publish", at_key=True)
    for number, glob in enumerate(rule.match.partition or []):
        if not glob.strip("*?"):
            yield Fault(("match", "partition", number), f"{glob!a} is every partition; publish needs names")


def _publishers(rule: Rule, model: PolicyModel, find_user: FindUser) -> Iterator[Fault]:
    for number, name in enumerate(rule.publish.users if rule.publish else []):
        loc = ("publish", "users", number)
        found = find_user(name)
        if found is None:
            yield Fault(loc, f"no user {name!r} on this node")
        elif found.uid < model.limits.min_uid:
            yield Fault(loc, f"{name!r} has uid {found.uid}, below limits.min_uid: it gets nothing")


def _images(rule: Rule, model: PolicyModel) -> Iterator[Fault]:
    for number, reference in enumerate(rule.images):
        registry = registry_of(reference)
        if registry not in model.images.registries:
            yield Fault(("images", number), f"registry {registry} is not in images.registries")


def registry_of(reference: str) -> str:
    """Return the registry of an image that the model took."""
    # A first part with a dot, a port or the name localhost is a registry; all else is Docker Hub's.
    first, slash, _ = reference.removeprefix("docker://").partition("/")
    return first if slash and ("." in first or ":" in first or first == "localhost") else "docker.io"


def _environment(rule: Rule) -> Iterator[Fault]:
    for name in rule.env:
        if name.startswith(("WARMSTART_", "SLURM_")):
            yield Fault(("env", name), "belongs to warmstart or Slurm; a policy may not set it", at_key=True)
