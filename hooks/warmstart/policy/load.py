"""The policy's files to their compiled form. Never on a warm path."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection, Sequence
from typing import Any

from warmstart.host.identity import Identity
from warmstart.policy import checks, definitions, source
from warmstart.policy.compiled import MADE_BY
from warmstart.policy.document import Document, Place
from warmstart.policy.explain import Fault
from warmstart.policy.invalid import PolicyUnreadable, Problem, invalid
from warmstart.policy.model import Credentials, Images, Match, PolicyModel, Rendezvous, Rule, check_shape

OF_THE_SPEC = ("qos", "job_name", "array")  # what a node may have to learn from the controller's hook


def compile_policy(
    policy: str,
    *,
    owners: Collection[int] = source.ROOT,
    profiles: Sequence[str] | None = None,
    find_user: checks.FindUser | None = None,
) -> dict[str, Any]:
    """Return the JSON form of policy.yaml at `policy` and its conf.d, for `compiled.from_json`.

    `owners` are the uids whose files are believed. Raises `PolicyInvalid` with every problem,
    `PolicyUntrusted`, `PolicyUnreadable`. Takes tens of milliseconds.
    """
    known = _profile_names() if profiles is None else profiles
    users = find_user or node_user
    signature = source.signature(policy)
    document = _read(policy, owners)
    model = _checked(document, known, users)
    sections = ("paths", "seed", "harvest", "tend", "limits", "trust", "on_error")
    return {
        "made_by": MADE_BY,
        "signature": [list(stamp) for stamp in signature],
        **{key: getattr(model, key).model_dump() for key in sections},
        "images": _images(model.images, users),
        **{key: _existing(users, getattr(model, key))._asdict() for key in checks.ACCOUNTS},
        "site_label": model.site_label,
        "constant_path": model.constant_path,
        "slurmctld": _slurmctld(model, users),
        "profiles": definitions.compiled(model),
        "rules": [_rule(rule, document.place(("rules", number)), users) for number, rule in enumerate(model.rules)],
    }


def node_user(name: str) -> Identity | None:
    """Return an account as this node's NSS has it, or None."""
    import pwd

    try:
        found = pwd.getpwnam(name)
    except KeyError:
        return None
    return Identity(found.pw_name, found.pw_uid, found.pw_gid)


def _profile_names() -> list[str]:
    from warmstart.profiles import registry

    return registry.names()


def _read(policy: str, owners: Collection[int]) -> Document:
    document = Document(policy)
    (path, text), *additions = source.read(policy, owners)
    document.add_policy(path, text)
    for path, text in additions:
        document.add_rules(path, text)
    return document


def _checked(document: Document, profiles: Sequence[str], users: checks.FindUser) -> PolicyModel:
    found = check_shape(document.data)
    faults = found if isinstance(found, list) else checks.faults(found, profiles, users)
    problems = [*document.problems, *(_problem(document, fault) for fault in faults)]
    if problems or isinstance(found, list):
        raise invalid(problems)
    return found


def _problem(document: Document, fault: Fault) -> Problem:
    return Problem(*document.place(fault.loc, fault.at_key), fault.problem)


def _images(images: Images, users: checks.FindUser) -> dict[str, Any]:
    adopt = [
        {"directory": item.directory, "owners": [_existing(users, name).uid for name in item.owners]}
        for item in images.adopt
    ]
    return {**images.model_dump(), "adopt": adopt, "credentials": _credentials(images.credentials)}


def _credentials(credentials: Credentials | None) -> dict[str, Any] | None:
    if credentials is None:
        return None
    repositories = [
        {"name": item.name, "pattern": [item.repository, _regex(item.repository)], "match": _conditions(item.match)}
        for item in credentials.repositories
    ]
    return {"file": credentials.file, "repositories": repositories}


def _slurmctld(model: PolicyModel, users: checks.FindUser) -> dict[str, Any] | None:
    keys = model.slurmctld
    if keys.spec_directory is None:
        return None
    credentials = model.images.credentials
    matches = [rule.match for rule in model.rules]
    matches += [item.match for item in credentials.repositories] if credentials else []
    return {
        "spec_directory": keys.spec_directory,
        "user": _existing(users, keys.user)._asdict(),
        "deadline": keys.deadline,
        "conf": keys.conf or "",
        "attributes": [key for key in OF_THE_SPEC if any(getattr(match, key) for match in matches)],
    }


def _rule(rule: Rule, place: Place, users: checks.FindUser) -> dict[str, Any]:
    publishers = [_existing(users, name) for name in (rule.publish.users if rule.publish else [])]
    return {
        "name": rule.name,
        "place": f"{place[0]}:{place[1]}",
        "match": _conditions(rule.match),
        "images": rule.images,
        "profiles": rule.profiles,
        "scope": rule.scope or "",
        "publishers": [[user.name, user.uid] for user in publishers],
        "env": rule.env,
        "override": rule.override,
        "rendezvous": _rendezvous(rule.rendezvous) if rule.rendezvous else None,
    }


def _rendezvous(given: Rendezvous) -> dict[str, Any]:
    low, high = given.ports
    return {"low": low, "high": high, **given.model_dump(exclude={"ports"})}


def _conditions(match: Match) -> list[list[Any]]:
    given: dict[str, list[str] | None] = match.model_dump()
    return [condition(attribute, globs) for attribute, globs in given.items() if globs is not None]


def condition(attribute: str, globs: Sequence[str]) -> list[Any]:
    """Return the JSON form of one key of a `match`."""
    return [attribute, [[glob, _regex(glob)] for glob in globs]]


def _regex(glob: str) -> str:
    return fnmatch.translate(glob) if re.search(r"[*?\[]", glob) else ""


def _existing(users: checks.FindUser, name: str) -> Identity:
    found = users(name)
    if found is None:  # it was there when `checks` looked: the name service changed its mind
        raise PolicyUnreadable(path=f"account {name}", problem="came and went while compiling")
    return found
