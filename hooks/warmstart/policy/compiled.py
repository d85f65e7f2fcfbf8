"""The compiled policy that hooks read: NamedTuples, resolved for this node, stored as JSON. Hot path.

`policy.current` keeps it in root's directory and checks with a few stat calls that the site's files have not changed.
It is valid only for the release of warmstart that wrote it.
"""

from __future__ import annotations

import os

from warmstart.host import files, wire
from warmstart.host.identity import Identity
from warmstart.host.wire import Json
from warmstart.lean import NamedTuple, dumps
from warmstart.profiles.defined import DefinedProfile

_FORMAT = 3
VERSION = "0.1.0"  # setup.cfg's; a test compares them
MADE_BY = f"{_FORMAT} warmstart-{VERSION}"
_LARGEST = 4 << 20

# (path, device, inode, size, mtime in ns, ctime in ns), or (path,) if it is missing.
Stamp = tuple[str | int, ...]
Signature = tuple[Stamp, ...]


class Paths(NamedTuple):
    """Absolute paths, checked by `policy.checks`."""

    workspace: str
    store: str
    audit: str
    scontrol: str
    cache: str
    metrics: str | None  # of node_exporter's textfile collector; None: no metrics are written
    shelf: str | None  # where a node keeps images unpacked; None: nowhere


class Audit(NamedTuple):
    """Where audit events go besides the file."""

    syslog: bool


class Condition(NamedTuple):
    """One key of a `match`. It holds if any glob matches."""

    attribute: str
    globs: tuple[str, ...]


class Keep(NamedTuple):
    """Limits for eviction."""

    high: int  # percent of the store's file system
    low: int  # percent
    lease: int  # seconds


class PrivateRepository(NamedTuple):
    """Images that need the site's credentials (a glob of REGISTRY/REPOSITORY), and the jobs that may read them."""

    name: str
    repository: str
    match: tuple[Condition, ...]


class Credentials(NamedTuple):
    """The file with the site's credentials, owned by root, and the repositories that they serve."""

    file: str
    repositories: tuple[PrivateRepository, ...]


class Unpack(NamedTuple):
    """How images are unpacked on a node, and kept."""

    keep: int  # bytes
    any_disk: bool


class Images(NamedTuple):
    """Where images come from, and how they are imported and kept."""

    importer: str
    registries: tuple[str, ...]  # HOST or HOST:PORT
    insecure: tuple[str, ...]  # HOST or HOST:PORT
    tag_ttl: int  # seconds
    wait: int  # seconds
    keep: Keep
    credentials: Credentials | None
    max_size: int  # bytes
    proxy: str | None
    unpack: Unpack


class Seed(NamedTuple):
    """Limits of one job's seeding, and of a node's copies."""

    fetch_budget: int  # seconds
    keep: int  # bytes


class Harvest(NamedTuple):
    """Limits of one job's harvest, and of a node's spool and deferred harvests."""

    budget: int  # seconds
    max_size: int  # bytes
    spool: int  # bytes
    deferred: int  # runs
    only_successful: bool
    while_running: int | None = None  # seconds after which a job's caches are harvested first; None: at its end alone


class Maintenance(NamedTuple):
    """How long the store keeps unused bundles, and quotas per scope."""

    keep: int  # seconds
    per_user: int  # bytes
    reports: int | None = None  # seconds; None: none are written


class Limits(NamedTuple):
    """Limits for jobs."""

    min_uid: int  # jobs of lower uids get nothing


class Trust(NamedTuple):
    """What Slurm enforces: "claimed" or "enforced", and "unproven" after `trust.proven`."""

    account: str


class OnError(NamedTuple):
    """What a failure does to the job; all others run cold."""

    image: str  # fail-job | run-without


class User(NamedTuple):
    """A user to whom the policy grants a right: name and uid, because uids are reused."""

    name: str
    uid: int


class Rule(NamedTuple):
    """One rule of the policy."""

    name: str
    place: str  # FILE:LINE
    match: tuple[Condition, ...]
    images: tuple[str, ...]
    profiles: tuple[str, ...]
    scope: str | None
    publishers: tuple[User, ...]
    env: dict[str, str]
    override: tuple[str, ...]
    mode: str | None = None  # observe | enforce
    own: dict[str, Json] = {}  # noqa: RUF012 - what wings read of it, by key; never mutated


class Word(NamedTuple):
    """A word of a job's request that a wing knows."""

    name: str
    wing: str
    refused: str  # what a job is told that says it where it is not offered
    refuses: bool  # whether such a job fails
    repeats: bool  # whether it may stand more than once


class Wing(NamedTuple):
    """A wing that is here; its parts are modules below `warmstart.wings`, "" if it has none."""

    name: str
    used: bool  # by this policy
    step: str
    early: bool  # whether its step comes before the images
    end: str
    informs: str = ""
    word: str = ""  # without which a job has no step of it; "": any job may
    keep: int = 0  # bytes of its packed wholes that stay on a node


class Policy(NamedTuple):
    """The site's policy, resolved for this node."""

    signature: Signature
    paths: Paths
    store_user: Identity
    import_user: Identity
    validate_user: Identity
    site_label: str
    constant_path: str  # none | spank | namespace | link | containers | enroot
    audit: Audit
    images: Images
    seed: Seed
    harvest: Harvest
    maintenance: Maintenance
    limits: Limits
    trust: Trust
    on_error: OnError
    rules: tuple[Rule, ...]
    profiles: tuple[DefinedProfile, ...]  # the site's own, and `files`
    mode: str = "enforce"  # observe | enforce
    own: dict[str, Json] = {}  # noqa: RUF012 - what is read of wings' sections, by key; never mutated
    unseen: tuple[str, ...] = ()  # attributes that rules match on and that some slurmd does not tell
    wings: tuple[Wing, ...] = ()
    words: tuple[Word, ...] = ()

    @property
    def constant_cache(self) -> str:
        """The path at which all jobs of this node see their cache; "" if each job has its own."""
        return "" if self.constant_path == "none" else self.paths.cache

    def parts(self, part: str) -> list[str]:
        """Return the modules of this part, of the wings that the policy uses. Not on a warm path: looks for files."""
        from warmstart import wing

        return [f"{known.name}.{part}" for known in self.wings if known.used and wing.has(known.name, part)]


def stamp(path: str) -> Stamp:
    """Return the stamp of a file or directory. Does not follow links."""
    try:
        status = os.stat(path, follow_symlinks=False)
    except OSError:
        return (path,)
    return (path, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)


def is_current(policy: Policy) -> bool:
    """Return whether the site's files are unchanged since this policy was compiled. Uses only stat calls."""
    return all(stamp(str(known[0])) == known for known in policy.signature)


def read(path: str) -> Policy | None:
    """Read the compiled policy. Return None if it is missing, damaged, untrusted or of another version."""
    data = read_own_json(path)
    if not isinstance(data, dict) or data.get("made_by") != MADE_BY:
        return None
    try:
        return decode(data)
    except (KeyError, TypeError, ValueError):
        return None


def read_own_json(path: str) -> Json:
    """Parse a JSON file that only this uid or root can write. Return None if it is missing, damaged or untrusted."""
    try:
        fd = files.open_regular(path)
    except OSError:
        return None
    try:
        status = os.fstat(fd)
        if files.weakness(status, (0, os.geteuid())):
            return None
        return wire.parse(files.read_up_to(fd, min(status.st_size, _LARGEST) + 1))
    except (OSError, ValueError):
        return None
    finally:
        os.close(fd)


def encode(policy: Policy) -> bytes:
    """Return the JSON of the policy."""
    return dumps({"made_by": MADE_BY, "policy": _plain(policy)}).encode()


def _plain(value: object) -> Json:
    """Return JSON in which a NamedTuple is an object with the key "", which no mapping of a policy has."""
    if isinstance(value, tuple):
        items = list(map(_plain, value))
        return {"": [type(value).__name__, *items]} if hasattr(value, "_fields") else items
    return value


def decode(data: Json) -> Policy:
    """Return the policy from what `encode` wrote. Raises `KeyError`, `TypeError` or `ValueError` for anything else.

    Checks no types but the whole's: the file is root's own, and every hook reads it.
    """
    classes = {name: value for name, value in globals().items() if hasattr(value, "_fields")}
    nested = {list, dict}

    def decoded(value: Json) -> Json:
        if type(value) is list:
            return tuple(all_decoded(value))
        if "" in value:
            name, *fields = value[""]
            return classes[name](*all_decoded(fields))
        return value

    def all_decoded(values: list[Json]) -> list[Json]:
        return [decoded(value) if type(value) in nested else value for value in values]

    policy = decoded(data["policy"])
    if not isinstance(policy, Policy):
        raise TypeError("not a policy")
    return policy
