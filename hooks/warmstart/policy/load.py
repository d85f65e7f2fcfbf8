"""Compile the site's policy files into the form that hooks read. Never on a warm path."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from warmstart import wing
from warmstart.host import files
from warmstart.host.identity import Identity
from warmstart.host.wire import Json
from warmstart.policy import checks, source
from warmstart.policy.document import Document, Fault
from warmstart.policy.invalid import Problem, invalid
from warmstart.policy.keys import Policy, Wing, Word
from warmstart.policy.model import check_shape
from warmstart.policy.types import FindUser
from warmstart.profiles import registry


def compile_policy(
    policy: str,
    *,
    owners: Collection[int] = files.ROOT_ALONE,
    find_user: FindUser | None = None,
) -> Policy:
    """Compile policy.yaml at `policy` and the conf.d beside it, resolved for this node.

    `owners` are the uids whose files are trusted. Raises `PolicyInvalid` with all problems, `PolicyUntrusted` or
    `PolicyUnreadable`. Takes tens of milliseconds.
    """
    signature = source.signature(policy)
    document = Document(source.read(policy, owners))
    return resolved(checked(document, find_user or node_user), document)._replace(signature=signature)


def node_user(name: str) -> Identity | None:
    """Return an account from this node's NSS, or None if it does not exist."""
    import pwd

    try:
        account = pwd.getpwnam(name)
    except KeyError:
        return None
    return Identity(account.pw_name, account.pw_uid, account.pw_gid)


def checked(document: Document, find_user: FindUser) -> Policy:
    """Return the policy of a document, all sections of wings in its `own`. Raises `PolicyInvalid` with all problems."""
    shape = check_shape(document.data, find_user)
    faults = shape if isinstance(shape, list) else checks.faults(shape, registry.names())
    problems = [*document.problems, *(problem_at(document, fault) for fault in faults)]
    if problems or isinstance(shape, list):
        raise invalid(problems)
    return shape


def problem_at(document: Document, fault: Fault) -> Problem:
    """Return a fault with its position."""
    return Problem(*document.position(fault.loc, fault.at_key), fault.problem)


def resolved(policy: Policy, document: Document | None = None) -> Policy:
    """Return a checked policy with what hooks need besides its keys, among it the places of rules in the document."""
    rules = policy.rules
    if document is not None:
        places = (document.position(("rules", number)) for number in range(len(rules)))
        rules = tuple(
            rule._replace(place=f"{path}:{line}") for rule, (path, line, _) in zip(rules, places, strict=True)
        )
    own = {key: value for key, value in policy.own.items() if checks.is_used(key, value)}
    policy = policy._replace(
        rules=rules,
        profiles=(*policy.profiles, policy.files.profile),
        own=own,
        unseen=tuple(key for key in checks.UNSEEN if any(getattr(rule.match, key) for rule in rules)),
        words=tuple(
            Word(word, name, sentence, declared.refuses, word in declared.repeats)
            for name, declared in wing.found().items()
            for word, sentence in declared.words.items()
        ),
    )
    return policy._replace(wings=tuple(_wings(policy)))


def _wings(policy: Policy) -> Iterator[Wing]:
    """Yield the wings that are here.

    One with keys of its own is used where the policy, or a rule, has one of them; one that needs a key of the core's,
    where the policy has that.
    """
    given = {*policy.own, *(key for rule in policy.rules for key in rule.own)}
    for name, declared in wing.found().items():
        used = not declared.needs or bool(_key(policy, declared.needs))
        if wing.has(name, "policy"):
            part = wing.load(f"{name}.policy")
            used = not given.isdisjoint({*part.SECTIONS, *getattr(part.RULE_KEYS, "_fields", ())})
        parts = ("step", "end", "informs")
        step, end, informs = (f"{name}.{part}" if wing.has(name, part) else "" for part in parts)
        keep = _key(policy, declared.keep) or 0
        yield Wing(name, used, step, declared.step == "early", end, informs, declared.only_for, keep)


def _key(policy: Policy, key: str) -> Json:
    """Return the value of SECTION.KEY; None if the policy has none."""
    section, _, name = key.partition(".")
    values = getattr(policy, section)._asdict() if section in Policy._fields else policy.own.get(section, {})
    return values.get(name)
