"""Compile the site's policy files into the form that hooks read. Never on a warm path."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Collection, Sequence

from warmstart.host import files
from warmstart.host.identity import Identity
from warmstart.host.wire import Json
from warmstart.policy import checks, compiled, source
from warmstart.policy.compiled import Policy
from warmstart.policy.document import Document, Fault
from warmstart.policy.invalid import PolicyUnreadable, Problem, invalid
from warmstart.policy.schema import Credentials, Images, Match, PolicyModel, Rendezvous, Rule, Section, check_shape
from warmstart.profiles.contract import Fact
from warmstart.profiles.defined import FILES, DefinedProfile

_FROM_SPEC = ("qos", "job_name", "array")  # attributes that nodes may have to read from the controller's spec


def compile_policy(
    policy: str,
    *,
    owners: Collection[int] = files.ROOT_ALONE,
    profiles: Sequence[str] | None = None,
    find_user: checks.FindUser | None = None,
) -> Policy:
    """Compile policy.yaml at `policy` and the conf.d beside it, resolved for this node.

    `owners` are the uids whose files are trusted. Raises `PolicyInvalid` with all problems, `PolicyUntrusted` or
    `PolicyUnreadable`. Takes tens of milliseconds.
    """
    users = find_user or node_user
    signature = source.signature(policy)
    document = parsed(source.read(policy, owners))
    model = checked(document, users, profiles)

    def place(rule: int) -> str:
        path, line, _ = document.position(("rules", rule))
        return f"{path}:{line}"

    return resolve(model, users, place)._replace(signature=signature)


def resolve(model: PolicyModel, users: checks.FindUser, place: Callable[[int], str]) -> Policy:
    """Return the compiled form of a policy without faults; `place` returns the FILE:LINE of a rule by its number."""
    return Policy(
        signature=(),
        paths=compiled.Paths(**_values(model.paths)),
        store_user=_existing(users, model.store_user),
        import_user=_existing(users, model.import_user),
        validate_user=_existing(users, model.validate_user),
        site_label=model.site_label,
        constant_path=model.constant_path,
        audit=compiled.Audit(tuple(model.audit.services)),
        images=_images(model.images, users),
        seed=compiled.Seed(**_values(model.seed)),
        harvest=compiled.Harvest(**_values(model.harvest)),
        maintenance=compiled.Maintenance(**_values(model.maintenance)),
        limits=compiled.Limits(**_values(model.limits)),
        trust=compiled.Trust(**_values(model.trust)),
        on_error=compiled.OnError(**_values(model.on_error)),
        rules=tuple(_rule(rule, place(number), users) for number, rule in enumerate(model.rules)),
        slurmctld=_slurmctld(model, users),
        profiles=tuple(_profiles(model)),
        mode=model.mode,
    )


def node_user(name: str) -> Identity | None:
    """Return an account from this node's NSS, or None if it does not exist."""
    import pwd

    try:
        found = pwd.getpwnam(name)
    except KeyError:
        return None
    return Identity(found.pw_name, found.pw_uid, found.pw_gid)


def _profile_names() -> list[str]:
    from warmstart.profiles import registry

    return registry.names()


def parsed(texts: Sequence[tuple[str, str]]) -> Document:
    """Return the document of (path, text) of policy.yaml and of files in conf.d. Raises `PolicyInvalid`."""
    (path, text), *additions = texts
    document = Document(path)
    document.add_policy(path, text)
    for path, text in additions:
        document.add_rules(path, text)
    return document


def checked(document: Document, users: checks.FindUser, profiles: Sequence[str] | None = None) -> PolicyModel:
    """Return the model of a document. Raises `PolicyInvalid` with all problems."""
    found = check_shape(document.data)
    known = _profile_names() if profiles is None else profiles
    faults = found if isinstance(found, list) else checks.faults(found, known, users)
    problems = [*document.problems, *(problem_at(document, fault) for fault in faults)]
    if problems or isinstance(found, list):
        raise invalid(problems)
    return found


def problem_at(document: Document, fault: Fault) -> Problem:
    """Return a fault with its position."""
    return Problem(*document.position(fault.loc, fault.at_key), fault.problem)


def default_images() -> compiled.Images:
    """Return `images` as it is without a policy."""
    return _images(Images(), node_user)


def _images(images: Images, users: checks.FindUser) -> compiled.Images:
    keep = {key: value or 0 for key, value in images.keep.model_dump().items()}  # 0 bytes: no quota
    adopt = [
        compiled.Adopt(item.directory, tuple(_existing(users, name).uid for name in item.owners))
        for item in images.adopt
    ]
    return compiled.Images(
        **_values(images, "names", "proxy", "adopt", "keep", "credentials"),
        names=images.names or "",
        proxy=images.proxy or "",
        adopt=tuple(adopt),
        keep=compiled.Keep(**keep),
        credentials=_credentials(images.credentials),
    )


def _values(section: Section, *but: str) -> Json:
    """Return a section's values by their keys, lists as tuples, without those that have another form in hooks."""
    values = section.model_dump(exclude=set(but))
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}


def _credentials(credentials: Credentials | None) -> compiled.Credentials | None:
    if credentials is None:
        return None
    repositories = [
        compiled.PrivateRepository(item.name, _pattern(item.repository), _conditions(item.match))
        for item in credentials.repositories
    ]
    return compiled.Credentials(credentials.file, tuple(repositories))


def _slurmctld(model: PolicyModel, users: checks.FindUser) -> compiled.Slurmctld | None:
    keys = model.slurmctld
    if keys.spec_directory is None:
        return None
    credentials = model.images.credentials
    matches = [rule.match for rule in model.rules]
    matches += [item.match for item in credentials.repositories] if credentials else []
    return compiled.Slurmctld(
        **_values(keys, "user", "conf"),
        user=_existing(users, keys.user),
        conf=keys.conf or "",
        attributes=tuple(key for key in _FROM_SPEC if any(getattr(match, key) for match in matches)),
    )


def _rule(rule: Rule, place: str, users: checks.FindUser) -> compiled.Rule:
    publishers = [_existing(users, name) for name in (rule.publish.users if rule.publish else [])]
    return compiled.Rule(
        **_values(rule, "match", "mode", "scope", "publish", "rendezvous"),
        place=place,
        match=_conditions(rule.match),
        mode=rule.mode or "",
        scope=rule.scope or "",
        publishers=tuple(compiled.User(user.name, user.uid) for user in publishers),
        rendezvous=_rendezvous(rule.rendezvous) if rule.rendezvous else None,
    )


def _rendezvous(given: Rendezvous) -> compiled.Rendezvous:
    low, high = given.ports
    return compiled.Rendezvous(**_values(given, "ports"), low=low, high=high)


def _conditions(match: Match) -> tuple[compiled.Condition, ...]:
    given: dict[str, list[str] | None] = match.model_dump()
    return tuple(condition(attribute, globs) for attribute, globs in given.items() if globs is not None)


def condition(attribute: str, globs: Sequence[str]) -> compiled.Condition:
    """Compile one key of a `match`."""
    return compiled.Condition(attribute, tuple(map(_pattern, globs)))


def _pattern(glob: str) -> compiled.Pattern:
    return compiled.Pattern(glob, fnmatch.translate(glob) if re.search(r"[?\[]", glob) else "")


def _profiles(model: PolicyModel) -> list[DefinedProfile]:
    """Return the profiles that the policy defines, and `files`."""
    own = [
        DefinedProfile(
            **_values(profile, "facts", "only_successful"),
            name=name,
            facts=_distinct("image", *profile.facts),
            after_success=profile.only_successful,
        )
        for name, profile in model.profiles.items()
    ]
    files_profile = DefinedProfile(
        **_values(model.files, "include", "facts", "only_successful"),
        name=FILES,
        variables={"WARMSTART_FILES": "{dir}"},
        relocation="relocatable",
        facts=_distinct("image", "declared", *model.files.facts),
        entries=tuple(model.files.include),
        needs=(),
        formats={"*": "written"},
        after_success=model.files.only_successful,
        sidecars=True,
    )
    return [*own, files_profile]


def _distinct(*names: Fact) -> tuple[Fact, ...]:
    return tuple(dict.fromkeys(names))


def _existing(users: checks.FindUser, name: str) -> Identity:
    found = users(name)
    if found is None:  # `checks` found it, so the name service changed meanwhile
        raise PolicyUnreadable(path=f"account {name}", problem="disappeared while the policy was compiled")
    return found
