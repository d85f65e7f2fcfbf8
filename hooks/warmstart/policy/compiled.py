"""The policy in the form that hooks read: JSON from `load`, named tuples here. Hot path.

Written by root into root's directory, and valid only for the warmstart and the Python that made it
(the patterns are regular expressions of that Python). Whether it is still what the site's files say is
a question of a few stat calls.
"""

from __future__ import annotations

import json
import os
import stat
import sys
from typing import Any, NamedTuple

from warmstart.host import files
from warmstart.host.worker import Identity

FORMAT = 1
VERSION = "0.1.0"  # setup.cfg's; a test compares them
MADE_BY = f"{FORMAT} warmstart-{VERSION} python-{sys.version_info[0]}.{sys.version_info[1]}"
LARGEST = 4 << 20

# path, then device, inode, size, mtime and ctime in ns; path and nothing when it is not there.
Stamp = tuple[str | int, ...]
Signature = tuple[Stamp, ...]


class Paths(NamedTuple):
    """Absolute paths, none below /tmp or /dev."""

    workspace: str
    store: str
    audit: str
    scontrol: str
    cache: str


class Adopt(NamedTuple):
    """A directory and the uids whose images in it are taken over."""

    directory: str
    owners: tuple[int, ...]


class Keep(NamedTuple):
    """Percent of the store's file system, seconds, and bytes; 0 bytes: no quota."""

    high: int
    low: int
    floor: int
    lease: int
    user: int
    account: int


class Pattern(NamedTuple):
    """A glob as written, and its regular expression; that is "" for a plain name."""

    glob: str
    regex: str


class Condition(NamedTuple):
    """One key of a `match`: any of the patterns."""

    attribute: str
    patterns: tuple[Pattern, ...]


class PrivateRepository(NamedTuple):
    """What the site's credentials fetch (`pattern` of REGISTRY/REPOSITORY), and who may read it."""

    name: str
    pattern: Pattern
    match: tuple[Condition, ...]


class Credentials(NamedTuple):
    """A file of root's, and what it is used for."""

    file: str
    repositories: tuple[PrivateRepository, ...]


class Images(NamedTuple):
    """`tag_ttl`, `wait`, `remember_failures` in seconds; registries as HOST or HOST:PORT; `names` may be ""."""

    importer: str
    registries: tuple[str, ...]
    insecure: tuple[str, ...]
    tag_ttl: int
    wait: int
    remember_failures: int
    verify: str
    lock: str
    names: str
    adopt: tuple[Adopt, ...]
    keep: Keep
    credentials: Credentials | None = None


class Seed(NamedTuple):
    """Seconds and bytes."""

    fetch_budget: int
    max_fetch: int
    keep: int


class Harvest(NamedTuple):
    """Seconds, bytes, entries."""

    budget: int
    max_size: int
    max_entries: int
    spool: int


class Tend(NamedTuple):
    """Seconds, bytes."""

    keep: int
    per_user: int
    per_account: int
    per_site: int


class Limits(NamedTuple):
    """Jobs of uids below `min_uid` get nothing."""

    min_uid: int


class Trust(NamedTuple):
    """Each is "claimed" or "enforced"."""

    account: str
    qos: str = "claimed"


class Slurmctld(NamedTuple):
    """The controller's hooks: where their specs are, whose, seconds; `conf` may be "".

    `attributes` are those that rules match on and that a node may have to learn from a spec.
    """

    spec_directory: str
    user: Identity
    deadline: int
    conf: str
    attributes: tuple[str, ...]


class OnError(NamedTuple):
    """`store`: degrade|verdict, `image`: verdict|best-effort, `bug`: allow|refuse."""

    store: str
    image: str
    bug: str


class User(NamedTuple):
    """A user that the policy names with a right: name and uid, because uids are reused."""

    name: str
    uid: int


class Rendezvous(NamedTuple):
    """Reserve between `low` and `high`, both included; `wait` in seconds."""

    low: int
    high: int
    per_job: int
    per_user: int
    shared_nodes: bool
    wait: int
    required: bool


class Rule(NamedTuple):
    """One rule; `scope` is "" when the rule has none; `place` is its FILE:LINE."""

    name: str
    place: str
    match: tuple[Condition, ...]
    images: tuple[str, ...]
    profiles: tuple[str, ...]
    scope: str
    publishers: tuple[User, ...]
    env: dict[str, str]
    rendezvous: Rendezvous | None = None


class Policy(NamedTuple):
    """Everything that the site's policy says, resolved for this node."""

    signature: Signature
    paths: Paths
    store_user: Identity
    import_user: Identity
    validate_user: Identity
    site_label: str
    constant_path: str  # none | spank
    images: Images
    seed: Seed
    harvest: Harvest
    tend: Tend
    limits: Limits
    trust: Trust
    on_error: OnError
    rules: tuple[Rule, ...]
    slurmctld: Slurmctld | None = None  # None: nodes look for no specs

    @property
    def cache_place(self) -> str:
        """Where every bare job of this node sees its cache; "" where each has a path of its own."""
        return "" if self.constant_path == "none" else self.paths.cache


def stamp(path: str) -> Stamp:
    """Return a file's or directory's stamp; a link's own, never its target's."""
    try:
        found = os.stat(path, follow_symlinks=False)
    except OSError:
        return (path,)
    return (path, found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def is_current(policy: Policy) -> bool:
    """Tell whether the site's files are those that this policy was made from; stat calls only."""
    return all(stamp(str(known[0])) == known for known in policy.signature)


def read(path: str) -> Policy | None:
    """Return the compiled policy; None when it is missing, damaged, of another version or not root's own."""
    data = read_own_json(path)
    if not isinstance(data, dict) or data.get("made_by") != MADE_BY:
        return None
    try:
        return from_json(data)
    except (KeyError, TypeError, ValueError):
        return None


def read_own_json(path: str) -> Any:  # noqa: ANN401 - JSON
    """Return the JSON of a file that this uid or root wrote and nobody else can; None for any other."""
    try:
        fd = files.open_regular(path)
    except OSError:
        return None
    try:
        found = os.fstat(fd)
        if found.st_uid not in (0, os.geteuid()) or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
            return None
        data = b""
        while chunk := os.read(fd, LARGEST + 1 - len(data)):
            data += chunk
        return json.loads(data)
    except (OSError, ValueError):
        return None
    finally:
        os.close(fd)


def from_json(data: dict[str, Any]) -> Policy:
    """Return the policy of `load.compile_policy`'s dict; `KeyError`, `TypeError` when it is another's."""
    return Policy(
        signature=tuple(tuple(item) for item in data["signature"]),
        paths=Paths(**data["paths"]),
        store_user=Identity(**data["store_user"]),
        import_user=Identity(**data["import_user"]),
        validate_user=Identity(**data["validate_user"]),
        site_label=data["site_label"],
        constant_path=data["constant_path"],
        images=_images(data["images"]),
        seed=Seed(**data["seed"]),
        harvest=Harvest(**data["harvest"]),
        tend=Tend(**data["tend"]),
        limits=Limits(**data["limits"]),
        trust=Trust(**data["trust"]),
        on_error=OnError(**data["on_error"]),
        rules=tuple(_rule(rule) for rule in data["rules"]),
        slurmctld=_slurmctld(**data["slurmctld"]) if data["slurmctld"] else None,
    )


def _slurmctld(user: dict[str, Any], attributes: list[str], **others: Any) -> Slurmctld:  # noqa: ANN401 - JSON
    return Slurmctld(user=Identity(**user), attributes=tuple(attributes), **others)


def _images(data: dict[str, Any]) -> Images:
    keep = {key: value or 0 for key, value in data["keep"].items()}  # no quota is 0 bytes
    changed = {
        "registries": tuple(data["registries"]),
        "insecure": tuple(data["insecure"]),
        "names": data["names"] or "",
        "adopt": tuple(Adopt(item["directory"], tuple(item["owners"])) for item in data["adopt"]),
        "keep": Keep(**keep),
        "credentials": _credentials(**data["credentials"]) if data["credentials"] else None,
    }
    return Images(**{**data, **changed})


def _credentials(file: str, repositories: list[dict[str, Any]]) -> Credentials:
    private = [
        PrivateRepository(item["name"], Pattern(*item["pattern"]), _conditions(item["match"])) for item in repositories
    ]
    return Credentials(file, tuple(private))


def _conditions(data: list[Any]) -> tuple[Condition, ...]:
    return tuple(Condition(attribute, tuple(Pattern(*pattern) for pattern in patterns)) for attribute, patterns in data)


def _rule(data: dict[str, Any]) -> Rule:
    return Rule(
        name=data["name"],
        place=data["place"],
        match=_conditions(data["match"]),
        images=tuple(data["images"]),
        profiles=tuple(data["profiles"]),
        scope=data["scope"],
        publishers=tuple(User(*user) for user in data["publishers"]),
        env=data["env"],
        rendezvous=Rendezvous(**data["rendezvous"]) if data["rendezvous"] else None,
    )
