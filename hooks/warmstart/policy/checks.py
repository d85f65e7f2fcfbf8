"""Checks across keys of the policy: paths, accounts, names, and that only verified attributes grant rights.

They enforce rules 3 to 5 of docs/architecture.md and rows 3, 9 and 10 of docs/threats.md. Each check yields all its
faults.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence

from warmstart import wing
from warmstart.host.identity import Identity
from warmstart.host.wire import Json
from warmstart.paths import LONGEST_WORKSPACE
from warmstart.policy.document import Fault, Loc, dotted, nearest
from warmstart.policy.keys import DAY, Match, Policy, Publish, Rule
from warmstart.profiles.contract import FILES, is_whole

ACCOUNTS = ("store_user", "import_user", "validate_user")
UNSEEN = ("qos", "job_name")  # attributes that slurmd does not tell a prolog, the first one before 26.05
_APART = ("workspace", "store", "cache", "shelf")  # of the paths: none in another, and the audit log in none
# With job_container/tmpfs jobs have their own directories there, and any user can create a name there first.
NEVER_BELOW = ("/tmp", "/dev", "/proc", "/sys")
NEEDS_ENFORCED = "account needs trust.account: enforced; otherwise users choose their account"


def _of_wings(function: str, *arguments: object) -> Iterator[Fault]:
    """Yield what the policy's parts of all wings find wrong: with their sections, or with a rule, relative to it."""
    for part in map(wing.load, wing.with_part("policy")):
        yield from getattr(part, function, lambda *_: ())(*arguments)


def is_used(key: str, section: Json) -> bool:
    """Return whether a wing's section is in use: its first key has another value than by default."""
    first, value = next(iter(section.items()))
    classes = (wing.load(part).SECTIONS.get(key) for part in wing.with_part("policy"))
    default = next(filter(None, classes))._field_defaults[first]
    return value not in (None, [], default)


def faults(policy: Policy, shipped: Sequence[str]) -> list[Fault]:
    """Return all faults of a policy whose values are right. `shipped` names the profiles that come with warmstart."""
    known = [*shipped, *(profile.name for profile in policy.profiles)]
    found = [
        *_defined_profiles(policy, shipped),
        *_overrides(policy, shipped),
        *_paths(policy),
        *_accounts(policy),
        *_images(policy),
        *_of_wings("faults", policy),
        *(
            fault._replace(loc=("rules", number, *fault.loc))
            for number, rule in enumerate(policy.rules)
            for fault in _in_rule(rule, policy, known)
        ),
        *(
            Fault(("rules", number, "name"), f"another rule has the name {name}")
            for number, name in _repeated(rule.name for rule in policy.rules)
        ),
    ]
    return [fault._replace(problem=f"{dotted(fault.loc)}: {fault.problem}") for fault in found]


def _paths(policy: Policy) -> Iterator[Fault]:
    paths: dict[str, str] = {key: path for key, path in policy.paths._asdict().items() if path}
    for key, path in paths.items():
        loc = ("paths", key)
        if problem := not_normal(path):
            yield Fault(loc, problem)
        for bad in NEVER_BELOW:
            # With `link` the path is created only in a job that has its own /tmp from job_container.
            is_link = (key, bad, policy.constant_path) == ("cache", "/tmp", "link")
            if within(path, bad) and not is_link:
                yield Fault(loc, f"may not be below {bad}")
        for other in _APART if key in (*_APART, "audit") else ():
            if key != other in paths and within(path, paths[other]):
                yield Fault(loc, f"may not be in paths.{other} ({paths[other]})")
    if len(paths["workspace"].encode()) > LONGEST_WORKSPACE:
        problem = f"is too long for sockets in TMPDIR (unix(7)); write at most {LONGEST_WORKSPACE} bytes"
        yield Fault(("paths", "workspace"), problem)


def not_normal(path: str) -> str:
    """Return what is wrong with the form of a path, "" if nothing is."""
    normal = os.path.normpath(path)
    return f"write {normal}, without '..', '//' or a trailing '/'" if normal != path else ""


def within(path: str, directory: str) -> bool:
    """Return whether a path is a directory or below it."""
    return f"{path}/".startswith(f"{directory}/")


def _accounts(policy: Policy) -> Iterator[Fault]:
    seen: dict[int, str] = {}
    for key in ACCOUNTS:
        account: Identity = getattr(policy, key)
        if other := seen.get(account.uid):
            yield Fault((key,), f"{account.name!r} has the uid of {other}; each account needs its own")
        seen.setdefault(account.uid, key)


def _images(policy: Policy) -> Iterator[Fault]:
    """Yield faults of images: of credentials, a registry that is not allowed, or a match on no verified attribute."""
    keep, credentials = policy.images.keep, policy.images.credentials
    if keep.low >= keep.high:
        yield Fault(("images", "keep", "low"), f"{keep.low}% is not below keep.high, {keep.high}%")
    if keep.lease < DAY:
        yield Fault(("images", "keep", "lease"), "is less than 1d: nodes note an image's use once a day")
    if credentials is None:
        return
    where: Loc = ("images", "credentials")
    if within(credentials.file, policy.paths.store) or within(credentials.file, policy.paths.workspace):
        yield Fault((*where, "file"), "may not be in paths.store or paths.workspace")
    for number, name in _repeated(item.name for item in credentials.repositories):
        yield Fault((*where, "repositories", number, "name"), f"the name {name} is used twice")
    for number, item in enumerate(credentials.repositories):
        loc: Loc = (*where, "repositories", number)
        registry, slash, repository = item.repository.partition("/")
        if registry not in policy.images.allowed or not slash or not repository:
            problem = f"write REGISTRY/REPOSITORY; the registry, here {registry!a}, must be one of images.registries"
            yield Fault((*loc, "repository"), problem)
        if not any(item.match):
            yield Fault((*loc, "match"), "is empty; name who may use these images, e.g. {group: team}")
        for fault in claimed(policy, item.match, "credentials", "user, group or partition"):
            yield fault._replace(loc=(*loc, *fault.loc))


def _repeated(names: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Yield names that an earlier item already has, with their indexes."""
    seen: set[str] = set()
    for number, name in enumerate(names):
        if name in seen:
            yield number, name
        seen.add(name)


def _defined_profiles(policy: Policy, shipped: Sequence[str]) -> Iterator[Fault]:
    for profile in policy.profiles:
        loc = ("profiles", profile.name)
        if profile.name in (*shipped, FILES) or is_whole(profile.name):
            yield Fault(loc, "is a profile of warmstart; choose another name", at_key=True)
        yield from _reserved((*loc, "variables"), profile.variables)
        if not any("{dir}" in value for value in profile.variables.values()):
            yield Fault((*loc, "variables"), "none contains {dir}, so the tool would not find its cache", at_key=True)


def _reserved(loc: Loc, variables: Iterable[str]) -> Iterator[Fault]:
    for name in variables:
        if name.startswith(("WARMSTART_", "SLURM_")):
            problem = "is reserved for warmstart or Slurm; a policy may not set it"
            yield Fault((*loc, name), problem, at_key=True)


def _overrides(policy: Policy, shipped: Sequence[str]) -> Iterator[Fault]:
    """Yield overridden variables that nothing sets. Jobs may request any of `shipped`, so their variables count."""
    overrides = [
        (("rules", number, "override", index), name)
        for number, rule in enumerate(policy.rules)
        for index, name in enumerate(rule.override)
    ]
    known = _set_variables(policy, shipped) if overrides else frozenset()
    for loc, name in overrides:
        if name.startswith("WARMSTART_"):
            yield Fault(loc, f"users can never set {name}; remove it here")
        elif name not in known:
            yield Fault(loc, f"nothing sets {name}; add it to env, or correct the name")


def _set_variables(policy: Policy, shipped: Sequence[str]) -> frozenset[str]:
    from warmstart.profiles import registry

    built_in = (name for profile in shipped for name in registry.get(profile).variables)
    defined = (name for profile in policy.profiles for name in profile.variables)
    by_wings = (name for declared in wing.found().values() for name in declared.variables)
    return frozenset(["TMPDIR", *by_wings, *built_in, *defined, *(name for rule in policy.rules for name in rule.env)])


def _in_rule(rule: Rule, policy: Policy, profiles: Sequence[str]) -> Iterator[Fault]:
    """Yield the faults of one rule. Their locs are relative to the rule."""
    for number, name in enumerate(rule.profiles):
        if name not in profiles:
            yield Fault(("profiles", number), f"no profile {name!a}; {nearest(name, profiles)}")
    if rule.mode == "observe" and rule.match.node:
        yield Fault(("mode",), "a rule that matches node may only say enforce, which counts for jobs of one node")
    if rule.scope == "account" and policy.trust.account != "enforced":
        yield Fault(("scope",), NEEDS_ENFORCED)
    if rule.scope in ("account", "site"):
        yield from claimed(policy, rule.match, f"scope {rule.scope}", "user, group, node or partition")
    yield from _untold(rule, policy)
    if rule.publish is not None:
        yield from _publish(rule, rule.publish, policy)
    for number, problem in not_allowed(rule.images, policy):
        yield Fault(("images", number), problem)
    yield from _reserved(("env",), rule.env)
    yield from _of_wings("rule_faults", rule, policy)


def _untold(rule: Rule, policy: Policy) -> Iterator[Fault]:
    """Yield the key of a match that no slurmd tells a prolog, the job's name, where no wing does."""
    if rule.match.job_name is None:
        return
    sentences = []
    for name, declared in wing.found().items():
        if "job_name" in declared.informs:
            used = any(is_used(key, policy.own[key]) for key in wing.load(f"{name}.policy").SECTIONS)
            sentences.append("" if used else declared.informs["job_name"])
    if "" not in sentences:
        problem = " or ".join(sentences) or "no node knows this attribute: slurmd does not tell it"
        yield Fault(("match", "job_name"), problem, at_key=True)


def _publish(rule: Rule, publish: Publish, policy: Policy) -> Iterator[Fault]:
    if rule.scope not in ("account", "site"):
        yield Fault(("publish",), "needs scope: account or scope: site in the same rule", at_key=True)
    if rule.match.partition is None:
        yield Fault(("publish",), "needs match.partition in the same rule: where users may publish", at_key=True)
    for number, glob in enumerate(rule.match.partition or ()):
        if not glob.strip("*"):
            yield Fault(("match", "partition", number), f"{glob!a} matches every partition; publish needs names")
    for number, user in enumerate(publish.users):
        if user.uid < policy.limits.min_uid:
            problem = f"{user.name!r} has uid {user.uid}, below limits.min_uid: its jobs get nothing"
            yield Fault(("publish", "users", number), problem)


def not_allowed(references: Sequence[str], policy: Policy) -> Iterator[tuple[int, str]]:
    """Yield the numbers of images that are of no registry of the policy, each with the problem."""
    for number, reference in enumerate(references):
        registry = registry_of(reference)
        if registry not in policy.images.allowed:
            yield number, f"registry {registry} is not in images.registries"


def registry_of(reference: str) -> str:
    """Return the registry of an image reference that the schema accepts."""
    # A first part with a dot or a port, or `localhost`, is a registry. Other names are on Docker Hub.
    first, slash, _ = reference.removeprefix("docker://").partition("/")
    return first if slash and ("." in first or ":" in first or first == "localhost") else "docker.io"


def claimed(policy: Policy, match: Match, what: str, better: str) -> Iterator[Fault]:
    """Yield a fault for each key of a match that users can forge: `what` may not depend on it, but on `better`."""
    remedies = {"job_name": "", "qos": ""}
    if policy.trust.account != "enforced":
        remedies["account"] = ", or set trust.account: enforced where slurmctld enforces associations"
    for key, remedy in remedies.items():
        if getattr(match, key) is not None:
            problem = f"{what} may not depend on a claimed attribute; match on {better}{remedy}"
            yield Fault(("match", key), problem, at_key=True)
