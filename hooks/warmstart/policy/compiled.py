"""The compiled policy that hooks read: named tuples, resolved for this node, stored as JSON. Hot path.

`policy.refresh` keeps it in root's directory, and checks with a few stat calls that the site's files have not changed.
It is valid only for the warmstart and the Python that wrote it: its patterns are regular expressions of that Python.
"""

from __future__ import annotations

import json
import os
import sys
from typing import NamedTuple

from warmstart.host import files
from warmstart.host.identity import Identity
from warmstart.host.wire import Json
from warmstart.profiles.defined import DefinedProfile

_FORMAT = 1
VERSION = "0.1.0"  # setup.cfg's; a test compares them
MADE_BY = f"{_FORMAT} warmstart-{VERSION} python-{sys.version_info[0]}.{sys.version_info[1]}"
_LARGEST = 4 << 20

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


class Pattern(NamedTuple):
    """A glob as written, and its regular expression; that is "" for a plain name."""

    glob: str
    regex: str


class Condition(NamedTuple):
    """One key of a `match`: any of the patterns."""

    attribute: str
    patterns: tuple[Pattern, ...]


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


class PrivateRepository(NamedTuple):
    """Images that the site's credentials fetch (`pattern` of REGISTRY/REPOSITORY), and the jobs that may read them."""

    name: str
    pattern: Pattern
    match: tuple[Condition, ...]


class Credentials(NamedTuple):
    """The file with the credentials, root's, and what it is used for."""

    file: str
    repositories: tuple[PrivateRepository, ...]


class Images(NamedTuple):
    """`tag_ttl`, `wait`, `remember_failures` in seconds; registries are HOST or HOST:PORT; `names`, `proxy`: or ""."""

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
    max_size: int = 100 << 30
    max_files: int = 1_000_000
    hosts: tuple[str, ...] = ()
    proxy: str = ""


class Seed(NamedTuple):
    """Seconds and bytes."""

    fetch_budget: int
    max_fetch: int
    keep: int


class Harvest(NamedTuple):
    """Seconds, bytes, entries; `deferred` in runs."""

    budget: int
    max_size: int
    max_entries: int
    spool: int
    deferred: int = 8
    only_successful: bool = False


class Maintenance(NamedTuple):
    """Seconds, bytes."""

    keep: int
    per_user: int
    per_account: int
    per_site: int


class Limits(NamedTuple):
    """Jobs of uids below `min_uid` get nothing; `keep` in seconds, None where no job may."""

    min_uid: int
    keep: int | None = None


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
    """`store`: run-cold|fail-job, `image`: fail-job|run-without, `bug`: run-without|fail-job."""

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
    override: tuple[str, ...] = ()


class Policy(NamedTuple):
    """Everything that the site's policy says, resolved for this node."""

    signature: Signature
    paths: Paths
    store_user: Identity
    import_user: Identity
    validate_user: Identity
    site_label: str
    constant_path: str  # none | spank | namespace | link | enroot
    images: Images
    seed: Seed
    harvest: Harvest
    maintenance: Maintenance
    limits: Limits
    trust: Trust
    on_error: OnError
    rules: tuple[Rule, ...]
    slurmctld: Slurmctld | None = None  # None: nodes look for no specs
    profiles: tuple[DefinedProfile, ...] = ()  # those of the site, and `files`

    @property
    def constant_cache(self) -> str:
        """The one path at which jobs of this node see their cache; "" where each has a path of its own."""
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
        return decode(data)
    except (KeyError, TypeError, ValueError):
        return None


def read_own_json(path: str) -> Json:
    """Return the JSON of a file that this uid or root wrote and nobody else can; None for any other."""
    try:
        fd = files.open_regular(path)
    except OSError:
        return None
    try:
        found = os.fstat(fd)
        if files.weakness(found, (0, os.geteuid())):
            return None
        return json.loads(files.read_up_to(fd, _LARGEST + 1))
    except (OSError, ValueError):
        return None
    finally:
        os.close(fd)


def encode(policy: Policy) -> bytes:
    """Return the policy as it is written down."""
    return json.dumps({"made_by": MADE_BY, **_plain(policy)}).encode()


def _plain(value: object) -> Json:
    """Return named tuples as objects, by their fields' names."""
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {key: _plain(item) for key, item in value._asdict().items()}
    return list(map(_plain, value)) if isinstance(value, tuple) else value


def decode(data: Json) -> Policy:
    """Return the policy of what `encode` wrote; `KeyError`, `TypeError` for anything else.

    Only shapes are checked: it is root's own file, and every hook reads it.
    """
    return Policy(
        signature=tuple(map(tuple, data["signature"])),
        paths=Paths(**data["paths"]),
        store_user=Identity(**data["store_user"]),
        import_user=Identity(**data["import_user"]),
        validate_user=Identity(**data["validate_user"]),
        site_label=data["site_label"],
        constant_path=data["constant_path"],
        images=_images(**data["images"]),
        seed=Seed(**data["seed"]),
        harvest=Harvest(**data["harvest"]),
        maintenance=Maintenance(**data["maintenance"]),
        limits=Limits(**data["limits"]),
        trust=Trust(**data["trust"]),
        on_error=OnError(**data["on_error"]),
        rules=tuple(map(_rule, data["rules"])),
        slurmctld=_slurmctld(**data["slurmctld"]) if data["slurmctld"] else None,
        profiles=tuple(DefinedProfile(**item) for item in data["profiles"]),
    )


def _images(  # noqa: PLR0917 - what is no scalar
    registries: Json, insecure: Json, hosts: Json, adopt: Json, keep: Json, credentials: Json, **others: Json
) -> Images:
    return Images(
        registries=tuple(registries),
        insecure=tuple(insecure),
        hosts=tuple(hosts),
        adopt=tuple(Adopt(item["directory"], tuple(item["owners"])) for item in adopt),
        keep=Keep(**keep),
        credentials=_credentials(**credentials) if credentials else None,
        **others,
    )


def _credentials(file: str, repositories: Json) -> Credentials:
    private = [
        PrivateRepository(item["name"], Pattern(**item["pattern"]), _conditions(item["match"])) for item in repositories
    ]
    return Credentials(file, tuple(private))


def _conditions(data: Json) -> tuple[Condition, ...]:
    return tuple(
        Condition(item["attribute"], tuple(Pattern(**pattern) for pattern in item["patterns"])) for item in data
    )


def _slurmctld(user: Json, attributes: Json, **others: Json) -> Slurmctld:
    return Slurmctld(user=Identity(**user), attributes=tuple(attributes), **others)


def _rule(data: Json) -> Rule:
    return Rule(
        name=data["name"],
        place=data["place"],
        match=_conditions(data["match"]),
        images=tuple(data["images"]),
        profiles=tuple(data["profiles"]),
        scope=data["scope"],
        publishers=tuple(User(**user) for user in data["publishers"]),
        env=data["env"],
        override=tuple(data["override"]),
        rendezvous=Rendezvous(**data["rendezvous"]) if data["rendezvous"] else None,
    )
