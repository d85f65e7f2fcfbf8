"""Read the site's policy files, and compile them into the form that hooks read. Never on a warm path.

Root must own the files and every directory above them, and be the only one who can write them (docs/threats.md, row
19). Symbolic links are refused in every component of a path: each would need its own check that nobody else can change
it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Iterator

from warmstart import wing
from warmstart.errors import PolicyError
from warmstart.host import files, trusted
from warmstart.host.identity import Identity
from warmstart.host.wire import Json
from warmstart.policy import checks
from warmstart.policy.document import Document, invalid
from warmstart.policy.keys import Policy, Signature, Wing, Word, stamp
from warmstart.policy.model import check_shape
from warmstart.policy.types import FindUser
from warmstart.profiles import registry

LARGEST = 256 << 10


class PolicyUntrusted(PolicyError):
    """A user other than root could change or replace the policy."""

    code = "policy-untrusted"
    template = "{path}: {problem}"
    hint = "make root the owner of the policy, conf.d and all directories above, and let nobody else write them"


class PolicyUnreadable(PolicyError):
    """The policy is missing or cannot be read."""

    code = "policy-unreadable"
    template = "{path}: {problem}"
    hint = (
        "write a policy (start with share/warmstart/site.yaml), or create the file `off`; who is not root needs the "
        "cluster's policy on this host, readable for all"
    )


def compile_policy(policy: str, find_user: FindUser | None = None) -> Policy:
    """Compile policy.yaml at `policy` and the conf.d beside it, resolved for this node.

    Raises `PolicyInvalid` with all problems, `PolicyUntrusted` or `PolicyUnreadable`. Takes tens of milliseconds.
    """
    before = signature(policy)
    return resolved(checked(Document(texts(policy)), find_user or node_user))._replace(signature=before)


def signature(policy: str) -> Signature:
    """Return the stamps of all files that a compilation would read, including missing ones.

    Call it before reading: if a file changes in between, the compiled form counts as stale and is never used wrongly.
    """
    return tuple(map(stamp, (f"{os.path.dirname(policy)}/conf.d", *_paths(policy))))


def texts(policy: str) -> list[tuple[str, str]]:
    """Return (path, text) of policy.yaml, then of the files in conf.d sorted by name.

    Other users may compile a policy of their own; root trusts only root's files. Raises `PolicyUnreadable`, or
    `PolicyUntrusted` if anybody else could change a file.
    """
    return [(path, text_of(path, _data(path, {0, os.geteuid()}))) for path in _paths(policy)]


def text_of(path: str, data: bytes) -> str:
    """Return the text of a policy. Raises `PolicyUnreadable` if it is too large."""
    if len(data) > LARGEST:
        raise PolicyUnreadable(path=path, problem=f"larger than {LARGEST >> 10} KiB")
    return data.decode("utf-8", "surrogateescape")  # a lone surrogate is refused with its position


def _paths(policy: str) -> list[str]:
    extra = f"{os.path.dirname(policy)}/conf.d"
    try:
        names = [name for name in files.names_in(extra) if name.endswith((".yaml", ".yml")) and name[0] != "."]
    except OSError as error:
        raise PolicyUnreadable(path=extra, problem=os.strerror(error.errno or 0)) from error
    return [policy, *(f"{extra}/{name}" for name in names)]


def _data(path: str, owners: Collection[int]) -> bytes:
    directory, name = os.path.split(path)
    try:
        with trusted.opened_trusted(directory, owners) as parent, files.closing(files.open_regular(name, parent)) as fd:
            if problem := files.weakness(os.fstat(fd), owners):
                raise PolicyUntrusted(path=path, problem=problem)
            return files.read_up_to(fd, LARGEST + 1)
    except files.Untrusted as error:
        raise PolicyUntrusted(path=error.filename, problem=error.strerror) from error
    except OSError as error:
        path = os.path.join(directory, error.filename or name)
        # For a link open(2) fails with ENOTDIR if O_DIRECTORY and O_NOFOLLOW are set, with ELOOP if only the latter is.
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EINVAL):
            problem = "is a symbolic link, or not a regular file or directory"
            raise PolicyUntrusted(path=path, problem=problem) from error
        raise PolicyUnreadable(path=path, problem=os.strerror(error.errno or 0)) from error


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
    problems = [*document.problems, *map(document.problem, faults)]
    if problems or isinstance(shape, list):
        raise invalid(problems)
    return shape


def resolved(policy: Policy) -> Policy:
    """Return a checked policy with what hooks need besides its keys."""
    granted = {name for rule in policy.rules for name in rule.profiles}
    shipped = [registry.get(name) for name in sorted(granted.difference(own.name for own in policy.profiles))]
    policy = policy._replace(
        profiles=(*policy.profiles, policy.files.profile, *shipped),
        own={key: value for key, value in policy.own.items() if checks.is_used(key, value)},
        unseen=tuple(key for key in checks.UNSEEN if any(getattr(rule.match, key) for rule in policy.rules)),
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
