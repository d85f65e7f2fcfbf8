"""Checks across keys of the policy: paths, accounts, names, and that only verified attributes grant rights.

They enforce rules 3 to 5 of docs/architecture.md and rows 3, 9 and 10 of docs/threats.md. Each check yields all its
faults.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from warmstart import wing
from warmstart.host.identity import Identity
from warmstart.host.wire import Json
from warmstart.paths import LONGEST_WORKSPACE, Installation
from warmstart.policy.document import Fault, Loc, dotted, nearest
from warmstart.policy.schema import PLAIN, DefinedProfile, Images, Match, PolicyModel, Rule, Section
from warmstart.profiles.defined import FILES, is_whole

ACCOUNTS = ("store_user", "import_user", "validate_user")
UNSEEN = ("qos", "job_name")  # attributes that slurmd does not tell a prolog, the first one before 26.05
_NEVER_INSIDE = (
    ("workspace", "store"),
    ("store", "workspace"),
    ("audit", "store"),
    ("audit", "workspace"),
    ("audit", "cache"),
    ("cache", "store"),
    ("store", "cache"),
    ("cache", "workspace"),
    ("workspace", "cache"),
    ("shelf", "store"),
    ("shelf", "workspace"),
    ("shelf", "cache"),
    ("store", "shelf"),
    ("workspace", "shelf"),
    ("cache", "shelf"),
    ("audit", "shelf"),
)
# With job_container/tmpfs jobs have their own directories there, and any user can create a name there first.
NEVER_BELOW = ("/tmp", "/dev", "/proc", "/sys")
_OF_THE_SYSTEM = (
    "/bin",
    "/boot",
    "/etc",
    "/lib",
    "/lib32",
    "/lib64",
    "/root",
    "/run",
    "/sbin",
    "/usr",
    "/var/lib",
    "/var/run",
    "/var/spool",
)
_RESERVED = ("WARMSTART_", "SLURM_")  # prefixes of variables that a policy may not set
_RESERVED_PROBLEM = "is reserved for warmstart or Slurm; a policy may not set it"


FindUser = Callable[[str], "Identity | None"]


class PolicyPart(Protocol):
    """`policy.py` of a wing."""

    SECTIONS: Mapping[str, type[Section]]  # by their keys at the top
    RULE_KEYS: Mapping[str, tuple[object, object]]  # key of a rule → type, pydantic's field

    def faults(self, model: PolicyModel, find_user: FindUser) -> Iterator[Fault]:
        """Yield what is wrong with the wing's sections."""

    def rule_faults(self, rule: Rule, model: PolicyModel, find_user: FindUser) -> Iterator[Fault]:
        """Yield what is wrong with a rule; locs are relative to it."""

    def of_policy(self, model: PolicyModel, find_user: FindUser) -> dict[str, Json]:
        """Return what is read of the wing's sections, by key; none that the policy does not use."""

    def of_rule(self, rule: Rule, find_user: FindUser) -> dict[str, Json]:
        """Return what hooks read of a rule: by key, without those that the rule does not have."""


def of_wings() -> list[PolicyPart]:
    """Return the parts on the policy of all wings that are here."""
    parts: list[PolicyPart] = [wing.load(module) for module in wing.with_part("policy")]
    return parts


def faults(model: PolicyModel, shipped: Sequence[str], find_user: FindUser) -> list[Fault]:
    """Return all faults of a policy that the schema accepts. `shipped` names the profiles that come with warmstart."""
    known = [*shipped, *model.profiles]
    return [
        *_defined_profiles(model, shipped),
        *_overrides(model, shipped),
        *_paths(model),
        *_accounts(model, find_user),
        *_credentials(model),
        *_keep(model),
        *_rule_names(model),
        *(_fault(*fault) for part in of_wings() for fault in part.faults(model, find_user)),
        *(
            _fault(("rules", number, *fault.loc), fault.problem, fault.at_key)
            for number, rule in enumerate(model.rules)
            for fault in _in_rule(rule, model, known, find_user)
        ),
    ]


def _paths(model: PolicyModel) -> Iterator[Fault]:
    paths: dict[str, str] = model.paths.model_dump(exclude_none=True)
    for key, path in paths.items():
        loc = ("paths", key)
        yield from _normal(loc, path)
        for bad in NEVER_BELOW:
            # With `link` the path is created only in a job that has its own /tmp from job_container.
            is_link = (key, bad, model.constant_path) == ("cache", "/tmp", "link")
            if within(path, bad) and not is_link:
                yield _fault(loc, f"may not be below {bad}")
    if len(paths["workspace"].encode()) > LONGEST_WORKSPACE:
        problem = f"is too long for sockets in TMPDIR (unix(7)); write at most {LONGEST_WORKSPACE} bytes"
        yield _fault(("paths", "workspace"), problem)
    for inner, outer in _NEVER_INSIDE:
        if inner in paths and outer in paths and within(paths[inner], paths[outer]):
            yield _fault(("paths", inner), f"may not be in paths.{outer} ({paths[outer]})")


def _normal(loc: Loc, path: str) -> Iterator[Fault]:
    if problem := not_normal(path):
        yield _fault(loc, problem)


def not_normal(path: str) -> str:
    """Return what is wrong with the form of a path, "" if nothing is."""
    normal = os.path.normpath(path)
    return f"write {normal}, without '..', '//' or a trailing '/'" if normal != path else ""


def within(path: str, directory: str) -> bool:
    """Return whether a path is a directory or below it."""
    return f"{path}/".startswith(f"{directory}/")


def shared_prefixes(model: PolicyModel, section: str, prefixes: Sequence[str]) -> Iterator[Fault]:
    """Yield the `prefixes` of a wing's section that are the system's, or warmstart's: jobs see copies below them."""
    prefix, below, _ = wing.FOLDER.partition("/lib/warmstart/")
    installation = Installation(prefix)
    is_private = below and prefix != "/usr"
    own = (installation.etc, installation.var, installation.lib, installation.libexec) if is_private else ()
    for number, prefix in enumerate(prefixes):
        loc = (section, "prefixes", number)
        if problem := not_normal(prefix):
            yield Fault(loc, problem)
        for bad in (*NEVER_BELOW, *_OF_THE_SYSTEM):
            if within(prefix, bad) or within(bad, prefix):
                yield Fault(loc, f"may be neither below {bad} nor above it")
        if any(within(prefix, path) or within(path, prefix) for path in own):
            yield Fault(loc, f"may be neither in warmstart's own directories nor above one ({installation.prefix})")
        for name in ("store", "workspace", "cache", "audit"):
            path = getattr(model.paths, name)
            if within(prefix, path) or within(path, prefix):
                yield Fault(loc, f"may be neither in paths.{name} nor above it ({path})")


def _accounts(model: PolicyModel, find_user: FindUser) -> Iterator[Fault]:
    seen: dict[int, str] = {}
    for key in ACCOUNTS:
        name = getattr(model, key)
        account = find_user(name)
        if account is None:
            remedy = f"create it with the same uid on all nodes: useradd --system --uid N {name}"
            yield _fault((key,), f"no account {name!r} on this node; {remedy}")
        elif account.uid == 0 or account.gid == 0:
            yield _fault((key,), f"{name!r} has root's uid or group; it must be an unprivileged account")
        elif account.uid in seen:
            yield _fault((key,), f"{name!r} has the uid of {seen[account.uid]}; each account needs its own")
        else:
            seen[account.uid] = key


def _keep(model: PolicyModel) -> Iterator[Fault]:
    keep = model.images.keep
    if keep.low >= keep.high:
        yield _fault(("images", "keep", "low"), f"{keep.low}% is not below keep.high, {keep.high}%")


def _credentials(model: PolicyModel) -> Iterator[Fault]:
    """Yield faults of credentials: a registry that is not allowed, or a match on no verified attribute."""
    credentials = model.images.credentials
    if credentials is None:
        return
    if within(credentials.file, model.paths.store) or within(credentials.file, model.paths.workspace):
        yield _fault(("images", "credentials", "file"), "may not be in paths.store or paths.workspace")
    for number in _repeated(item.name for item in credentials.repositories):
        name = credentials.repositories[number].name
        yield _fault(("images", "credentials", "repositories", number, "name"), f"the name {name} is used twice")
    for number, item in enumerate(credentials.repositories):
        loc: Loc = ("images", "credentials", "repositories", number)
        registry, slash, repository = item.repository.partition("/")
        if registry not in registries(model.images) or not slash or not repository:
            problem = f"write REGISTRY/REPOSITORY; the registry, here {registry!a}, must be one of images.registries"
            yield _fault((*loc, "repository"), problem)
        if all(value is None for value in item.match.model_dump().values()):
            yield _fault((*loc, "match"), "is empty; name who may use these images, e.g. {group: team}")
        for fault in claimed(model, item.match, "credentials", "user, group or partition"):
            yield _fault((*loc, *fault.loc), fault.problem, at_key=True)


def _repeated(names: Iterable[str]) -> list[int]:
    """Return the indexes of names that an earlier item already has."""
    seen: set[str] = set()
    repeated = []
    for number, name in enumerate(names):
        if name in seen:
            repeated.append(number)
        seen.add(name)
    return repeated


def _defined_profiles(model: PolicyModel, shipped: Sequence[str]) -> Iterator[Fault]:
    for name, profile in model.profiles.items():
        loc = ("profiles", name)
        if name in shipped or name == FILES or is_whole(name):
            yield _fault(loc, "is a profile of warmstart; choose another name", at_key=True)
        yield from _variables(name, profile)


def _variables(name: str, profile: DefinedProfile) -> Iterator[Fault]:
    loc = ("profiles", name, "variables")
    for variable in profile.variables:
        if variable.startswith(_RESERVED):
            yield _fault((*loc, variable), _RESERVED_PROBLEM, at_key=True)
    if not any("{dir}" in value for value in profile.variables.values()):
        yield _fault(loc, "none contains {dir}, so the tool would not find its cache", at_key=True)


def _overrides(model: PolicyModel, shipped: Sequence[str]) -> Iterator[Fault]:
    """Yield overridden variables that nothing sets. Jobs may request any of `shipped`, so their variables count."""
    overrides = [
        (("rules", number, "override", index), name)
        for number, rule in enumerate(model.rules)
        for index, name in enumerate(rule.override)
    ]
    known = _set_variables(model, shipped) if overrides else frozenset()
    for loc, name in overrides:
        if name.startswith("WARMSTART_"):
            yield _fault(loc, f"users can never set {name}; remove it here")
        elif name not in known:
            yield _fault(loc, f"nothing sets {name}; add it to env, or correct the name")


def _set_variables(model: PolicyModel, shipped: Sequence[str]) -> frozenset[str]:
    from warmstart.profiles import registry  # loads a module per profile, and few policies need it

    built_in = (name for profile in shipped for name in registry.get(profile).variables)
    defined = (name for profile in model.profiles.values() for name in profile.variables)
    by_wings = (name for declared in wing.found().values() for name in declared.variables)
    return frozenset(["TMPDIR", *by_wings, *built_in, *defined, *(name for rule in model.rules for name in rule.env)])


def _rule_names(model: PolicyModel) -> Iterator[Fault]:
    for number in _repeated(rule.name for rule in model.rules):
        yield _fault(("rules", number, "name"), f"another rule has the name {model.rules[number].name}")


def _in_rule(rule: Rule, model: PolicyModel, profiles: Sequence[str], find_user: FindUser) -> Iterator[Fault]:
    """Yield the faults of one rule. Their locs are relative to the rule."""
    for number, name in enumerate(rule.profiles):
        if name not in profiles:
            yield Fault(("profiles", number), f"no profile {name!a}; {nearest(name, profiles)}")
    if rule.mode == "observe" and rule.match.node:
        yield Fault(("mode",), "a rule that matches node may only say enforce, which counts for jobs of one node")
    yield from _scope(rule, model)
    yield from _untold(rule, model, find_user)
    yield from _publish(rule)
    yield from _publishers(rule, model, find_user)
    for number, problem in not_allowed(rule.images, model):
        yield Fault(("images", number), problem)
    for name in rule.env:
        if name.startswith(_RESERVED):
            yield Fault(("env", name), _RESERVED_PROBLEM, at_key=True)
    for part in of_wings():
        yield from part.rule_faults(rule, model, find_user)


def _scope(rule: Rule, model: PolicyModel) -> Iterator[Fault]:
    if rule.scope == "account" and model.trust.account != "enforced":
        yield Fault(("scope",), "account needs trust.account: enforced; otherwise users choose their account")
    if rule.scope in ("account", "site"):
        yield from claimed(model, rule.match, f"scope {rule.scope}", "user, group, node or partition")


def _untold(rule: Rule, model: PolicyModel, find_user: FindUser) -> Iterator[Fault]:
    """Yield the key of a match that no slurmd tells a prolog, the job's name, where no wing does."""
    if rule.match.job_name is None:
        return
    sentences = []
    for name, declared in wing.found().items():
        if "job_name" in declared.informs:
            part: PolicyPart = wing.load(f"{name}.policy")
            sentences.append("" if part.of_policy(model, find_user) else declared.informs["job_name"])
    if "" not in sentences:
        problem = " or ".join(sentences) or "no node knows this attribute: slurmd does not tell it"
        yield Fault(("match", "job_name"), problem, at_key=True)


def _publish(rule: Rule) -> Iterator[Fault]:
    if rule.publish is None:
        return
    if rule.scope not in ("account", "site"):
        yield Fault(("publish",), "needs scope: account or scope: site in the same rule", at_key=True)
    if rule.match.partition is None:
        yield Fault(("publish",), "needs match.partition in the same rule: where users may publish", at_key=True)
    for number, glob in enumerate(rule.match.partition or []):
        if not glob.strip("*"):
            yield Fault(("match", "partition", number), f"{glob!a} matches every partition; publish needs names")


def _publishers(rule: Rule, model: PolicyModel, find_user: FindUser) -> Iterator[Fault]:
    for number, name in enumerate(rule.publish.users if rule.publish else []):
        loc = ("publish", "users", number)
        account = find_user(name)
        if account is None:
            yield Fault(loc, f"no user {name!r} on this node")
        elif account.uid < model.limits.min_uid:
            yield Fault(loc, f"{name!r} has uid {account.uid}, below limits.min_uid: its jobs get nothing")


def registries(images: Images) -> tuple[str, ...]:
    """Return the registries that the policy allows, with TLS or without, as HOST or HOST:PORT."""
    return tuple(written.removeprefix(PLAIN) for written in images.registries)


def not_allowed(references: Sequence[str], model: PolicyModel) -> Iterator[tuple[int, str]]:
    """Yield the numbers of images that are of no registry of the policy, each with the problem."""
    for number, reference in enumerate(references):
        registry = registry_of(reference)
        if registry not in registries(model.images):
            yield number, f"registry {registry} is not in images.registries"


def registry_of(reference: str) -> str:
    """Return the registry of an image reference that the schema accepts."""
    # A first part with a dot or a port, or `localhost`, is a registry. Other names are on Docker Hub.
    first, slash, _ = reference.removeprefix("docker://").partition("/")
    return first if slash and ("." in first or ":" in first or first == "localhost") else "docker.io"


def claimed(model: PolicyModel, match: Match, what: str, better: str) -> Iterator[Fault]:
    """Yield a fault for each key of a match that users can forge: `what` may not depend on it, but on `better`."""
    remedies = {"job_name": "", "qos": ""}
    if model.trust.account != "enforced":
        remedies["account"] = ", or set trust.account: enforced where slurmctld enforces associations"
    for key, remedy in remedies.items():
        if getattr(match, key) is not None:
            problem = f"{what} may not depend on a claimed attribute; match on {better}{remedy}"
            yield Fault(("match", key), problem, at_key=True)


def _fault(loc: Loc, problem: str, at_key: bool = False) -> Fault:
    return Fault(loc, f"{dotted(loc)}: {problem}", at_key)
