"""Compile the site's policy files into the form that hooks read. Never on a warm path."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TypeVar

from warmstart import wing
from warmstart.host import files
from warmstart.host.identity import Identity
from warmstart.host.wire import Json
from warmstart.policy import checks, compiled, source
from warmstart.policy.compiled import Policy
from warmstart.policy.document import Document, Fault
from warmstart.policy.invalid import PolicyUnreadable, Problem, invalid
from warmstart.policy.schema import PLAIN, Credentials, Images, Match, PolicyModel, Rule, Section, check_shape
from warmstart.profiles import registry
from warmstart.profiles.contract import Fact
from warmstart.profiles.defined import FILES, DefinedProfile
from warmstart.slurm import nodes

T = TypeVar("T")


def compile_policy(
    policy: str,
    *,
    owners: Collection[int] = files.ROOT_ALONE,
    find_user: checks.FindUser | None = None,
) -> Policy:
    """Compile policy.yaml at `policy` and the conf.d beside it, resolved for this node.

    `owners` are the uids whose files are trusted. Raises `PolicyInvalid` with all problems, `PolicyUntrusted` or
    `PolicyUnreadable`. Takes tens of milliseconds.
    """
    users = find_user or node_user
    signature = source.signature(policy)
    document = parsed(source.read(policy, owners))
    model = checked(document, users)

    def place(rule: int) -> str:
        path, line, _ = document.position(("rules", rule))
        return f"{path}:{line}"

    return resolve(model, users, place)._replace(signature=signature)


def resolve(model: PolicyModel, users: checks.FindUser, place: Callable[[int], str]) -> Policy:
    """Return the compiled form of a policy without faults; `place` returns the FILE:LINE of a rule by its number."""
    rules = tuple(_rule(rule, place(number), users) for number, rule in enumerate(model.rules))
    own = {key: value for part in checks.of_wings() for key, value in part.of_policy(model, users).items()}
    return _form(
        Policy,
        model,
        signature=(),
        **{key: existing(users, getattr(model, key)) for key in checks.ACCOUNTS},
        images=_images(model.images),
        rules=rules,
        profiles=tuple(_profiles(model)),
        own=own,
        unseen=_unseen(model),
        wings=tuple(_wings(rules, own)),
        words=tuple(_words()),
    )


def node_user(name: str) -> Identity | None:
    """Return an account from this node's NSS, or None if it does not exist."""
    import pwd

    try:
        account = pwd.getpwnam(name)
    except KeyError:
        return None
    return Identity(account.pw_name, account.pw_uid, account.pw_gid)


def parsed(texts: Sequence[tuple[str, str]]) -> Document:
    """Return the document of (path, text) of policy.yaml and of files in conf.d. Raises `PolicyInvalid`."""
    (path, text), *additions = texts
    document = Document(path)
    document.add_policy(path, text)
    for path, text in additions:
        document.add_rules(path, text)
    return document


def checked(document: Document, users: checks.FindUser) -> PolicyModel:
    """Return the model of a document. Raises `PolicyInvalid` with all problems."""
    shape = check_shape(document.data)
    faults = shape if isinstance(shape, list) else checks.faults(shape, registry.names(), users)
    problems = [*document.problems, *(problem_at(document, fault) for fault in faults)]
    if problems or isinstance(shape, list):
        raise invalid(problems)
    return shape


def problem_at(document: Document, fault: Fault) -> Problem:
    """Return a fault with its position."""
    return Problem(*document.position(fault.loc, fault.at_key), fault.problem)


def default_images() -> compiled.Images:
    """Return `images` as it is without a policy."""
    return _images(Images())


def _form(form: Callable[..., T], section: Section, **given: object) -> T:
    """Return a section as the NamedTuple that hooks read; `given` are the fields that are not what an admin writes."""
    fields = form._fields  # type: ignore[attr-defined]
    return form(**given, **{key: _value(item) for key, item in section if key in fields and key not in given})


def _value(value: object) -> object:
    if isinstance(value, Match):
        return tuple(condition(attribute, globs) for attribute, globs in value if globs is not None)
    if isinstance(value, Section):
        return _form(getattr(compiled, type(value).__name__), value)
    return tuple(map(_value, value)) if isinstance(value, list) else value


def _images(images: Images) -> compiled.Images:
    return _form(
        compiled.Images,
        images,
        credentials=_credentials(images.credentials),
        registries=checks.registries(images),
        insecure=tuple(written.removeprefix(PLAIN) for written in images.registries if written.startswith(PLAIN)),
    )


def _credentials(credentials: Credentials | None) -> compiled.Credentials | None:
    if credentials is None:
        return None
    repositories = (_form(compiled.PrivateRepository, item) for item in credentials.repositories)
    return compiled.Credentials(credentials.file, tuple(repositories))


def _unseen(model: PolicyModel) -> tuple[str, ...]:
    return tuple(key for key in checks.UNSEEN if any(getattr(rule.match, key) for rule in model.rules))


def _rule(rule: Rule, place: str, users: checks.FindUser) -> compiled.Rule:
    named = tuple(_user(users, name) for name in (rule.publish.users if rule.publish else []))
    own: dict[str, Json] = {}
    for part in checks.of_wings():
        own |= part.of_rule(rule, users)
    return _form(compiled.Rule, rule, place=place, publishers=named, own=own)


def _wings(rules: Sequence[compiled.Rule], own: Mapping[str, Json]) -> Iterator[compiled.Wing]:
    """Yield the wings that are here.

    One with keys of its own is used where the policy, or a rule, has one of them, or where it says so under its name.
    """
    given = {*own, *(key for rule in rules for key in rule.own)}
    for name, declared in wing.found().items():
        used = True
        if wing.has(name, "policy"):
            part: checks.PolicyPart = wing.load(f"{name}.policy")
            used = not given.isdisjoint({name, *part.RULE_KEYS, *part.SECTIONS})
        parts = ("step", "end", "informs")
        step, end, informs = (f"{name}.{part}" if wing.has(name, part) else "" for part in parts)
        section, _, key = declared.keep.partition(".")
        keep = own[section][key] if section in own else 0
        yield compiled.Wing(name, used, step, declared.step == "early", end, informs, declared.only_for, keep)


def _words() -> Iterator[compiled.Word]:
    for name, declared in wing.found().items():
        for word, sentence in declared.words.items():
            yield compiled.Word(word, name, sentence, declared.refuses, word in declared.repeats)


def _user(users: checks.FindUser, name: str) -> compiled.User:
    return compiled.User(*existing(users, name)[:2])


def condition(attribute: str, globs: Sequence[str]) -> compiled.Condition:
    """Compile one key of a `match`."""
    if attribute == "node":
        globs = [name for hosts in globs for name in nodes.expand(hosts)]
    return compiled.Condition(attribute, tuple(globs))


def _profiles(model: PolicyModel) -> Iterator[DefinedProfile]:
    """Yield the profiles that the policy defines, and `files`."""
    for name, profile in model.profiles.items():
        facts = _distinct("image", *profile.facts)
        yield _form(DefinedProfile, profile, name=name, facts=facts, after_success=profile.only_successful)
    yield _form(
        DefinedProfile,
        model.files,
        name=FILES,
        variables={"WARMSTART_FILES": "{dir}"},
        relocation="relocatable",
        facts=_distinct("image", "declared", *model.files.facts),
        entries=tuple(model.files.include),
        needs=(),
        formats={"*": "written"},
        after_success=model.files.only_successful,
        sidecars=True,
        empty=True,
    )


def _distinct(*names: Fact) -> tuple[Fact, ...]:
    return tuple(dict.fromkeys(names))


def existing(users: checks.FindUser, name: str) -> Identity:
    """Return an account that `checks` found. Raises `PolicyUnreadable`."""
    account = users(name)
    if account is None:  # `checks` found it, so the name service changed meanwhile
        raise PolicyUnreadable(path=f"account {name}", problem="disappeared while the policy was compiled")
    return account
