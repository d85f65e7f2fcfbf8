"""Checks across the policy's keys: possible paths, known names, rights on verified attributes only, defined profiles.

They hold rules 3 to 5 of docs/architecture.md and rows 3, 9 and 10 of docs/threats.md. Each check yields faults; none
stops at the first. `override` may name only variables that something sets.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence

from warmstart.host.identity import Identity
from warmstart.host.ports import ephemeral_overlap
from warmstart.paths import longest_node_name
from warmstart.policy.document import Fault, Loc, dotted, nearest
from warmstart.policy.schema import DefinedProfile, PolicyModel, Rule
from warmstart.profiles import defined
from warmstart.profiles.contract import Fact
from warmstart.profiles.defined import FILES

FindUser = Callable[[str], "Identity | None"]
ACCOUNTS = ("store_user", "import_user", "validate_user")
NEVER_INSIDE = (
    ("workspace", "store"),
    ("store", "workspace"),
    ("audit", "store"),
    ("audit", "workspace"),
    ("audit", "cache"),
    ("cache", "store"),
    ("store", "cache"),
    ("cache", "workspace"),
    ("workspace", "cache"),
)
# Under job_container/tmpfs a job cannot see what lies there, and anybody can take a name there first.
NEVER_BELOW = ("/tmp", "/dev", "/proc", "/sys")
VARIABLE = "WARMSTART_FILES"
OURS = ("TMPDIR", "MASTER_ADDR", "MASTER_PORT")  # what jobs find besides WARMSTART_*, `env` and their profiles'


def faults(model: PolicyModel, profiles: Sequence[str], find_user: FindUser) -> list[Fault]:
    """Return every fault of a well-shaped policy; `profiles` are those that come with warmstart."""
    known = [*profiles, *model.profiles]
    return [
        *profile_faults(model, profiles),
        *variable_faults(model, profiles),
        *_paths(model),
        *_accounts(model, find_user),
        *_registries(model),
        *_image_directories(model),
        *_adopted(model, find_user),
        *_credentials(model),
        *_keep(model),
        *_slurmctld(model, find_user),
        *_rule_names(model),
        *(
            _fault(("rules", number, *found.loc), found.problem, found.at_key)
            for number, rule in enumerate(model.rules)
            for found in _in_rule(rule, model, known, find_user)
        ),
    ]


def _in_rule(rule: Rule, model: PolicyModel, profiles: Sequence[str], find_user: FindUser) -> Iterator[Fault]:
    """Yield one rule's faults, their locs relative to the rule."""
    yield from _profiles(rule, profiles)
    yield from _scope(rule, model)
    yield from _spec(rule, model)
    yield from _publish(rule)
    yield from _publishers(rule, model, find_user)
    yield from _images(rule, model)
    yield from _environment(rule)
    yield from _rendezvous(rule, model)


def _fault(loc: Loc, problem: str, at_key: bool = False) -> Fault:
    return Fault(loc, f"{dotted(loc)}: {problem}", at_key)


def _paths(model: PolicyModel) -> Iterator[Fault]:
    paths: dict[str, str] = model.paths.model_dump()
    for key, path in paths.items():
        loc = ("paths", key)
        if os.path.normpath(path) != path:
            yield _fault(loc, f"write {os.path.normpath(path)}, without '..', '//' or a trailing '/'")
        for bad in NEVER_BELOW:
            # A link in a /tmp that job_container gives to each job is made only where that is proven.
            is_link = (key, bad, model.constant_path) == ("cache", "/tmp", "link")
            if _within(path, bad) and not is_link:
                yield _fault(loc, f"may not lie below {bad}")
    room = longest_node_name(paths["workspace"])
    if room < 1:
        most = len(paths["workspace"]) + room - 1
        problem = f"leaves programs no room for a socket in TMPDIR (unix(7)) on any node; write at most {most} bytes"
        yield _fault(("paths", "workspace"), problem)
    for inner, outer in NEVER_INSIDE:
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
            remedy = f"make it, with the same uid everywhere: useradd --system --uid N {name}"
            yield _fault((key,), f"no account {name!r} on this node; {remedy}")
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


def _image_directories(model: PolicyModel) -> Iterator[Fault]:
    """Where other launchers keep images is outside of what is ours alone."""
    images = model.images
    if images.lock == "beside" and images.names is None:
        yield _fault(("images", "lock"), "beside needs images.names: the directory where the launchers' locks lie")
    named: list[tuple[Loc, str]] = [(("names",), images.names)] if images.names else []
    named += [(("adopt", number, "directory"), item.directory) for number, item in enumerate(images.adopt)]
    for rest, path in named:
        loc: Loc = ("images", *rest)
        if os.path.normpath(path) != path:
            yield _fault(loc, f"write {os.path.normpath(path)}, without '..', '//' or a trailing '/'")
        for key, ours in (("store", model.paths.store), ("workspace", model.paths.workspace)):
            if _within(path, ours) or _within(ours, path):
                yield _fault(loc, f"and paths.{key} ({ours}) may not contain each other")


def _adopted(model: PolicyModel, find_user: FindUser) -> Iterator[Fault]:
    for number, item in enumerate(model.images.adopt):
        for place, name in enumerate(item.owners):
            if find_user(name) is None:
                yield _fault(("images", "adopt", number, "owners", place), f"no user {name!r} on this node")


def _keep(model: PolicyModel) -> Iterator[Fault]:
    keep = model.images.keep
    if keep.low >= keep.high:
        yield _fault(("images", "keep", "low"), f"{keep.low}% is not below keep.high, {keep.high}%")
    if keep.floor > 100 - keep.high:
        yield _fault(("images", "keep", "floor"), f"{keep.floor}% is never free below keep.high, {keep.high}%")
    if keep.account is not None and model.trust.account != "enforced":
        problem = "needs trust.account: enforced; else users spend another account's space"
        yield _fault(("images", "keep", "account"), problem)


def _slurmctld(model: PolicyModel, find_user: FindUser) -> Iterator[Fault]:
    directory, user = model.slurmctld.spec_directory, model.slurmctld.user
    if directory is None:
        return
    loc = ("slurmctld", "spec_directory")
    if os.path.normpath(directory) != directory:
        yield _fault(loc, f"write {os.path.normpath(directory)}, without '..', '//' or a trailing '/'")
    for key in ("store", "workspace", "cache"):
        if _within(directory, getattr(model.paths, key)):
            yield _fault(loc, f"may not lie in paths.{key}: {user} owns it and all that is above it, or root does")
    if find_user(user) is None:
        yield _fault(("slurmctld", "user"), f"no account {user!r} on this node")


def _credentials(model: PolicyModel) -> Iterator[Fault]:
    """Rights on verified attributes alone (docs/threats.md, rows 3 and 10), and for registries that are allowed."""
    credentials = model.images.credentials
    if credentials is None:
        return
    if _within(credentials.file, model.paths.store) or _within(credentials.file, model.paths.workspace):
        yield _fault(("images", "credentials", "file"), "may not lie in paths.store or paths.workspace")
    seen: set[str] = set()
    for number, item in enumerate(credentials.repositories):
        loc: Loc = ("images", "credentials", "repositories", number)
        registry, slash, repository = item.repository.partition("/")
        if registry not in model.images.registries or not slash or not repository:
            problem = f"write REGISTRY/REPOSITORY; registry {registry!a} is to be one of images.registries"
            yield _fault((*loc, "repository"), problem)
        if item.name in seen:
            yield _fault((*loc, "name"), f"another one is called {item.name}, too")
        seen.add(item.name)
        given = [key for key, value in item.match.model_dump().items() if value is not None]
        if not given:
            yield _fault((*loc, "match"), "is empty; say whose images these are, e.g. {group: team}")
        for attribute, remedy in _claimed(model):
            if attribute in given:
                problem = f"credentials may not rest on a claimed attribute; match on user, group or partition{remedy}"
                yield _fault((*loc, "match", attribute), problem, at_key=True)


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
    for attribute, remedy in _claimed(model) if above_user else ():
        if getattr(rule.match, attribute) is not None:
            yield Fault(
                ("match", attribute),
                f"scope {rule.scope} may not rest on a claimed attribute; match on user, group, node or "
                f"partition{remedy}",
                at_key=True,
            )


def _rendezvous(rule: Rule, model: PolicyModel) -> Iterator[Fault]:
    """Ports of a node are a limit that rests on verified attributes, and the kernel gives them to nobody else."""
    given = rule.rendezvous
    if given is None:
        return
    low, high = given.ports
    if overlap := ephemeral_overlap(low, high):
        problem = (
            f"overlaps this node's net.ipv4.ip_local_port_range, {overlap[0]}-{overlap[1]}: clients get those ports"
        )
        yield Fault(("rendezvous", "ports"), problem)
    if high - low < given.per_job:
        yield Fault(("rendezvous", "ports"), f"has fewer ports than one job may ask for (per_job: {given.per_job})")
    if given.per_user <= given.per_job:
        yield Fault(("rendezvous", "per_user"), f"is not above per_job, {given.per_job}, of one job alone")
    for attribute, remedy in _claimed(model):
        if getattr(rule.match, attribute) is not None:
            problem = f"rendezvous may not rest on a claimed attribute; match on user, group or partition{remedy}"
            yield Fault(("match", attribute), problem, at_key=True)


def _claimed(model: PolicyModel) -> Iterator[tuple[str, str]]:
    """Yield what a user can write into a job, and what else would help."""
    if model.trust.account != "enforced":
        yield "account", ", or set trust.account: enforced where slurmctld enforces associations"
    if model.trust.qos != "enforced":
        yield "qos", ", or set trust.qos: enforced where slurmctld enforces it"
    yield from ((attribute, "") for attribute in ("constraint", "job_name", "array"))


def _spec(rule: Rule, model: PolicyModel) -> Iterator[Fault]:
    """Yield what no node can tell by itself, whatever its Slurm."""
    for attribute in ("job_name", "array"):
        if getattr(rule.match, attribute) is not None and model.slurmctld.spec_directory is None:
            problem = "needs slurmctld.spec_directory: only the controller's hook knows it"
            yield Fault(("match", attribute), problem, at_key=True)


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


def profile_faults(model: PolicyModel, shipped: Sequence[str]) -> Iterator[Fault]:
    """Yield what is wrong with the site's profiles; `shipped` are the names of those that come with warmstart."""
    for name, profile in model.profiles.items():
        loc = ("profiles", name)
        if name in shipped or name == FILES:
            yield Fault(loc, f"{dotted(loc)}: comes with warmstart; choose another name", at_key=True)
        yield from _variables(name, profile)


def _variables(name: str, profile: DefinedProfile) -> Iterator[Fault]:
    loc = ("profiles", name, "variables")
    for variable in profile.variables:
        if variable.startswith(("WARMSTART_", "SLURM_")):
            problem = f"{dotted((*loc, variable))}: belongs to warmstart or Slurm; a policy may not set it"
            yield Fault((*loc, variable), problem, at_key=True)
    if not any("{dir}" in value for value in profile.variables.values()):
        yield Fault(loc, f"{dotted(loc)}: none has {{dir}}, so the tool would not find its cache", at_key=True)


def compiled(model: PolicyModel) -> list[defined.DefinedProfile]:
    """Return the definitions in the form that hooks have of them."""
    made = [
        defined.DefinedProfile(
            name=name,
            variables=profile.variables,
            relocation=profile.relocation,
            facts=_facts("image", *profile.facts),
            entries=profile.entries,
            never=profile.never,
            needs=profile.needs,
            formats=dict(profile.formats),
            max_size=profile.max_size,
            after_success=profile.only_successful,
        )
        for name, profile in model.profiles.items()
    ]
    return [*made, _files(model)]


def _files(model: PolicyModel) -> defined.DefinedProfile:
    return defined.DefinedProfile(
        name=FILES,
        variables={VARIABLE: "{dir}"},
        relocation="relocatable",
        facts=_facts("image", "declared", *model.files.facts),
        entries=model.files.include,
        never=model.files.never,
        needs=[],
        formats={"*": "written"},
        max_size=model.files.max_size,
        after_success=model.files.only_successful,
        sidecars=True,
    )


def _facts(*names: Fact) -> list[Fact]:
    return list(dict.fromkeys(names))


def variable_faults(model: PolicyModel, profiles: Sequence[str]) -> Iterator[Fault]:
    """Yield the names that nothing sets; `profiles` are those that come with warmstart: any job may ask for one."""
    wanted = [
        (("rules", number, "override", place), name)
        for number, rule in enumerate(model.rules)
        for place, name in enumerate(rule.override)
    ]
    known = _known(model, profiles) if wanted else frozenset()
    for loc, name in wanted:
        if name.startswith("WARMSTART_"):
            yield Fault(loc, f"{dotted(loc)}: {name} is never the user's; leave it out")
        elif name not in known:
            yield Fault(loc, f"{dotted(loc)}: nothing sets {name}; put it into env, or correct it")


def _known(model: PolicyModel, profiles: Sequence[str]) -> frozenset[str]:
    from warmstart.profiles import registry  # a module for each profile, and few policies need them

    built_in = (name for profile in profiles for name in registry.get(profile).variables)
    defined = (name for profile in model.profiles.values() for name in profile.variables)
    return frozenset([*OURS, *built_in, *defined, *(name for rule in model.rules for name in rule.env)])
