"""Checks across keys of the policy: paths, accounts, names, and that only verified attributes grant rights.

They enforce rules 3 to 5 of docs/architecture.md and rows 3, 9 and 10 of docs/threats.md. Each check yields all its
faults.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from warmstart import wing
from warmstart.host import wire
from warmstart.host.wire import Json
from warmstart.paths import LONGEST_WORKSPACE, Installation
from warmstart.policy.document import Fault, Loc, dotted, nearest
from warmstart.policy.keys import DAY, Match, Policy, Publish, Rule
from warmstart.policy.shared import SharedPath, is_below
from warmstart.profiles import registry
from warmstart.profiles.contract import FILES, is_whole

ACCOUNTS = ("store_user", "import_user", "validate_user")
UNSEEN = ("qos", "job_name")  # attributes that slurmd does not tell a prolog, the first one before 26.05
_APART = ("workspace", "store", "cache", "shelf")  # of the paths: none in another, and the audit log in none
# With job_container/tmpfs jobs have their own directories there, and any user can create a name there first.
_NEVER_BELOW = ("/tmp", "/dev", "/proc", "/sys")
_OF_THE_SYSTEM = (
    "/bin", "/boot", "/etc", "/lib", "/lib32", "/lib64", "/root", "/run", "/sbin", "/usr",
    "/var/lib", "/var/run", "/var/spool",
)  # fmt: skip
_NEEDS_ENFORCED = "account needs trust.account: enforced; otherwise users choose their account"


def faults(policy: Policy, shipped: Sequence[str]) -> list[Fault]:
    """Return all faults of a policy whose values are right. `shipped` names the profiles that come with warmstart."""
    known = [*shipped, *(profile.name for profile in policy.profiles)]
    found = [
        *_profiles(policy, shipped),
        *_overrides(policy, known),
        *_paths(policy),
        *_accounts(policy),
        *_images(policy),
        *_of_wings("faults", policy),
        *_repeated(("rules",), (rule.name for rule in policy.rules)),
    ]
    for number, rule in enumerate(policy.rules):
        found += [fault._replace(loc=("rules", number, *fault.loc)) for fault in _in_rule(rule, policy, known)]
    return [fault._replace(problem=f"{dotted(fault.loc)}: {fault.problem}") for fault in found]


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


def _paths(policy: Policy) -> Iterator[Fault]:
    paths: dict[str, str] = {key: path for key, path in policy.paths._asdict().items() if path}
    for key, path in paths.items():
        # With `link` the path is created only in a job that has its own /tmp from job_container.
        is_link = (key, policy.constant_path) == ("cache", "link")
        for bad in _NEVER_BELOW[is_link:]:
            if _is_in(path, bad):
                yield Fault(("paths", key), f"may not be below {bad}")
        for other in _APART if key in (*_APART, "audit") else ():
            if key != other in paths and _is_in(path, paths[other]):
                yield Fault(("paths", key), f"may not be in paths.{other} ({paths[other]})")
    if len(paths["workspace"]) > LONGEST_WORKSPACE:
        problem = f"is too long for sockets in TMPDIR (unix(7)); write at most {LONGEST_WORKSPACE} bytes"
        yield Fault(("paths", "workspace"), problem)


def _is_in(path: str, directory: str) -> bool:
    return f"{path}/".startswith(f"{directory}/")


def _overlap(path: str, directory: str) -> bool:
    return _is_in(path, directory) or _is_in(directory, path)


def apart(loc: Loc, path: str, policy: Policy, names: Sequence[str]) -> Iterator[Fault]:
    """Yield faults of a path that is in one of the policy's `paths`, or above it."""
    for name in names:
        if _overlap(path, ours := getattr(policy.paths, name)):
            yield Fault(loc, f"may be neither in paths.{name} nor above it ({ours})")


def _accounts(policy: Policy) -> Iterator[Fault]:
    seen: dict[int, str] = {}
    for key in ACCOUNTS:
        account = getattr(policy, key)
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
    yield from apart((*where, "file"), credentials.file, policy, ("store", "workspace"))
    yield from _repeated((*where, "repositories"), (item.name for item in credentials.repositories))
    for number, item in enumerate(credentials.repositories):
        loc: Loc = (*where, "repositories", number)
        registry, slash, repository = item.repository.partition("/")
        if registry not in policy.images.allowed or not slash or not repository:
            problem = f"write REGISTRY/REPOSITORY; the registry, here {registry!a}, must be one of images.registries"
            yield Fault((*loc, "repository"), problem)
        if not any(item.match):
            yield Fault((*loc, "match"), "is empty; name who may use these images, e.g. {group: team}")
        for fault in claimed(policy, item.match, "credentials"):
            yield fault._replace(loc=(*loc, *fault.loc))


def _repeated(loc: Loc, names: Iterable[str]) -> Iterator[Fault]:
    """Yield faults of names that an earlier item of the list at `loc` already has."""
    seen: set[str] = set()
    for number, name in enumerate(names):
        if name in seen:
            yield Fault((*loc, number, "name"), f"another one has the name {name}")
        seen.add(name)


def _profiles(policy: Policy, shipped: Sequence[str]) -> Iterator[Fault]:
    for profile in policy.profiles:
        loc = ("profiles", profile.name)
        if profile.name in (*shipped, FILES) or is_whole(profile.name):
            yield Fault(loc, "is a profile of warmstart; choose another name", at_key=True)
        if not any("{dir}" in value for value in profile.variables.values()):
            yield Fault((*loc, "variables"), "none contains {dir}, so the tool would not find its cache", at_key=True)


def _overrides(policy: Policy, profiles: Sequence[str]) -> Iterator[Fault]:
    """Yield overridden variables that nothing sets. Jobs may request any profile, so its variables count."""
    known = {"TMPDIR", *(variable for name in profiles for variable in registry.get(name, policy.profiles).variables)}
    known.update(*(rule.env for rule in policy.rules), *(declared.variables for declared in wing.found().values()))
    for number, rule in enumerate(policy.rules):
        for index, name in enumerate(rule.override):
            if name not in known:
                problem = f"nothing sets {name}; add it to env, or correct the name"
                yield Fault(("rules", number, "override", index), problem)


def _in_rule(rule: Rule, policy: Policy, profiles: Sequence[str]) -> Iterator[Fault]:
    """Yield the faults of one rule. Their locs are relative to the rule."""
    for number, name in enumerate(rule.profiles):
        if name not in profiles:
            yield Fault(("profiles", number), f"no profile {name!a}; {nearest(name, profiles)}")
    if rule.mode == "observe" and rule.match.node:
        yield Fault(("mode",), "a rule that matches node may only say enforce, which counts for jobs of one node")
    if rule.scope == "account" and policy.trust.account != "enforced":
        yield Fault(("scope",), _NEEDS_ENFORCED)
    if rule.scope in ("account", "site"):
        yield from claimed(policy, rule.match, f"scope {rule.scope}")
    if rule.match.job_name is not None:
        yield from _untold(policy)
    if rule.publish is not None:
        yield from _publish(rule, rule.publish, policy)
    for number, problem in not_allowed(rule.images, policy):
        yield Fault(("images", number), problem)
    yield from _of_wings("rule_faults", rule, policy)


def _untold(policy: Policy) -> Iterator[Fault]:
    """Yield the job's name in a match, which no slurmd tells a prolog, where no wing that is in use does."""
    found = wing.found().items()
    lacks = {name: declared.informs["job_name"] for name, declared in found if "job_name" in declared.informs}
    sections = [key for name in lacks for key in wing.load(f"{name}.policy").SECTIONS]
    if not any(is_used(key, policy.own[key]) for key in sections):
        problem = " or ".join(lacks.values()) or "no node knows this attribute: slurmd does not tell it"
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


def claimed(policy: Policy, match: Match, what: str) -> Iterator[Fault]:
    """Yield a fault for each key of a match that users can forge: `what` may not depend on it."""
    remedies = {"job_name": "", "qos": ""}
    if policy.trust.account != "enforced":
        remedies["account"] = ", or set trust.account: enforced where slurmctld enforces associations"
    for key, remedy in remedies.items():
        if getattr(match, key) is not None:
            problem = f"{what} may not depend on a claimed attribute; match on user, group or partition{remedy}"
            yield Fault(("match", key), problem, at_key=True)


def of_prefixes(policy: Policy, section: str, given: Sequence[str]) -> Iterator[Fault]:
    """Yield the `prefixes` of a section that are the system's, or warmstart's: jobs see copies below them."""
    prefix, below, _ = wing.FOLDER.partition("/lib/warmstart/")
    at = Installation(prefix)
    own = (at.etc, at.var, at.lib, at.libexec) if below and prefix != "/usr" else ()
    for number, path in enumerate(given):
        loc = (section, "prefixes", number)
        if bad := [bad for bad in (*_NEVER_BELOW, *_OF_THE_SYSTEM, *own) if _overlap(path, bad)]:
            yield Fault(loc, f"may be neither below {bad[0]} nor above it")
        yield from apart(loc, path, policy, ("store", "workspace", "cache", "audit"))


def of_shared(rule: Rule, policy: Policy, key: str) -> Iterator[Fault]:
    """Yield faults of a rule's `key`: a path below no prefix of the section of that name, a claimed attribute."""
    shared = wire.decode(list[SharedPath], rule.own.get(key, []))
    for number, item in enumerate(shared):
        if not is_below(item.path, policy.own[key]["prefixes"]):
            yield Fault((key, number, "path"), f"{item.path} is below none of {key}.prefixes")
        if item.scope == "account" and policy.trust.account != "enforced":
            yield Fault((key, number, "scope"), _NEEDS_ENFORCED)
    if shared:
        yield from claimed(policy, rule.match, key)
