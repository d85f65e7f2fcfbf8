"""What hooks know of the policy, resolved for this node: named tuples. Hot path."""

from __future__ import annotations

from typing import NamedTuple

from warmstart.host.identity import Identity
from warmstart.profiles.defined import DefinedProfile

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
    """`tag_ttl`, `wait`, `remember_failures` in seconds; registries as HOST or HOST:PORT; `names`, `proxy`: or ""."""

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
    def cache_place(self) -> str:
        """Where jobs of this node see their cache; "" where each has a path of its own."""
        return "" if self.constant_path == "none" else self.paths.cache
