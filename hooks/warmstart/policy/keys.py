"""The policy's keys, in the form that hooks read: NamedTuples, resolved for this node, stored as JSON. Hot path.

A key is a field with a sentence below it, or with a mapping of keys: its name, type, default and meaning stand here and
nowhere else. `policy.model` makes of them what checks a site's YAML, policies/schema.json, and the tables of
docs/reference/policy.md. A type's name stands for its check in `policy.types`. Other fields are made when a policy is
compiled. Sentences cost hooks nothing: Python's compiler drops them.

`policy.current` keeps the compiled policy in root's directory and checks with a few stat calls that the site's files
have not changed. It is valid only for the release of warmstart that wrote it.
"""

from __future__ import annotations

import os

from warmstart.host import files, wire
from warmstart.host.identity import Identity
from warmstart.host.wire import Json
from warmstart.lean import TYPE_CHECKING, NamedTuple, dumps
from warmstart.profiles.contract import Files, Profile

if TYPE_CHECKING:
    from typing import Literal, TypeVar

    T = TypeVar("T")
    Some = tuple[T, ...]  # not empty
    Mode = Literal["observe", "enforce"]
    Account = Identity
    Count = int
    Positive = int
    Glob = str
    Label = str
    Path = str
    Proxy = str
    ImageReference = str
    Registry = str
    Value = str
    Variable = str
    Globs = tuple[str, ...]
    HostLists = tuple[str, ...]  # patterns of single names
    Profiles = tuple[Profile, ...]

_FORMAT = 4
VERSION = "0.1.0"  # setup.cfg's; a test compares them
MADE_BY = f"{_FORMAT} warmstart-{VERSION}"
_LARGEST = 4 << 20
PLAIN = "http://"  # before a registry that has no TLS

# (path, device, inode, size, mtime in ns, ctime in ns), or (path,) if it is missing.
Stamp = tuple[str | int, ...]
Signature = tuple[Stamp, ...]

# As numbers, once they are checked.
Duration = int  # seconds
Size = int  # bytes
Percent = int

MINUTE, DAY = 60, 86400
GIB = 1 << 30


def account(name: str) -> Identity:
    """Return an account as a default: it is looked up when the policy is compiled."""
    return Identity(name, -1, -1)


class Paths(NamedTuple):
    """Where things are. Each path is absolute and normal, and not below `/tmp`, `/dev`, `/proc` or `/sys`."""

    store: Path
    """Directory on the shared file system that holds images and bundles. `store_user` owns it."""
    workspace: Path = "/var/tmp/warmstart"
    """Node-local disk for the jobs' workspaces, at most 46 bytes. It and its parents must belong to root, who alone may
    write in it."""
    audit: Path = "/var/log/warmstart/audit.jsonl"
    """This node's audit log: [a line of JSON](audit.md) with all that a hook did."""
    cache: Path = "/var/cache/warmstart"
    """The constant path: where jobs see their cache, in containers and where `constant_path` says so ([inside the
    job](../start/inside-the-job.md)). An empty directory that belongs to root."""
    metrics: Path | None = None
    """Directory of node_exporter's textfile collector, in which maintenance writes
    [metrics](../operations/monitoring.md); root's, and nobody else's to write."""
    shelf: Path | None = None
    """Directory on a node-local disk where a node keeps images [unpacked](images.md#unpacked-once). You make it; its
    parents must belong to root."""
    scontrol: Path = "/usr/bin/scontrol"
    """Slurm's `scontrol`, with `squeue` in the same directory: by them hooks drain a node and ask about jobs. Of
    several Slurms on a node `warmstart doctor` judges this one."""


class Audit(NamedTuple):
    """Where audit events go besides `paths.audit`, [which has all of them](audit.md)."""

    syslog: bool = False
    """Send each line to the host's `/dev/log`, too: to systemd's journal, or to syslog."""


class Match(NamedTuple):
    """Which jobs a rule is for. All keys must match; of a list, one pattern is enough. Patterns are case-sensitive."""

    partition: Globs | None = None
    """The job's partition. Verified."""
    account: Globs | None = None
    """The job's account. Claimed, unless `trust.account` is `enforced`."""
    user: Globs | None = None
    """The job's user name. Verified."""
    node: HostLists | None = None
    """The node's Slurm name, as a host list: `n[01-16]`, `gpu*`. Verified."""
    qos: Globs | None = None
    """The job's QOS, which slurmd tells since 26.05 ([before](#what-slurmd-does-not-tell)). Claimed."""
    job_name: Globs | None = None
    """The job's name, [which slurmd does not tell](#what-slurmd-does-not-tell). Claimed."""
    group: Globs | None = None  # the last one: the look-up may query a directory server
    """Any group that the user is in according to the node's own NSS. Verified."""


class Keep(NamedTuple):
    """How much of the store's file system images may use; which are [evicted first](images.md#space)."""

    high: Percent = 85
    """Share of the store's file system in use above which images are evicted."""
    low: Percent = 70
    """Share in use at which eviction ends. Least recently used images go first."""
    lease: Duration = 7 * DAY
    """How long a node's last use protects an image from eviction, at least a day. Set it longer than your longest
    job."""


class PrivateRepository(NamedTuple):
    """Images that the site's own credentials fetch, and the jobs that may read them."""

    name: Label
    """Name of the directory of the store that holds them. Unique."""
    repository: Glob
    """`REGISTRY/REPOSITORY`, a pattern from the first slash on: `reg.example.com/team/*`."""
    match: Match
    """The jobs that may read them, as in `rules[].match`. Verified attributes only; not empty."""


class Credentials(NamedTuple):
    """The site's own credentials at registries ([private images](../guides/private-images.md))."""

    file: Path
    """File that `skopeo login --authfile` writes. It belongs to root, has mode 0600 and is neither in the store nor in
    the workspace."""
    repositories: Some[PrivateRepository]
    """The first that fits the job and the image counts."""


class Unpack(NamedTuple):
    """What a node with `paths.shelf` keeps [unpacked](images.md#unpacked-once)."""

    keep: Size = 200 * GIB
    """Bytes of unpacked images on a node. The least recently used of the user who has most go first."""
    any_disk: bool = False
    """Unpack also where `paths.shelf` is on a tmpfs, which takes memory, or on an overlay, as in a pod."""


class Images(NamedTuple):
    """Which [images](images.md) may be imported, and how."""

    importer: Literal["auto", "enroot", "oci"] = "auto"
    """`oci` is skopeo, umoci and mksquashfs; `auto` is oci, but enroot if `/usr/bin/enroot` exists and `/usr/bin/umoci`
    does not."""
    registries: tuple[Registry, ...] = ()
    """Allow-list, for images of the policy and for those that jobs ask for. Docker Hub is `docker.io`. A test registry
    without TLS is `http://HOST:PORT`."""
    proxy: Proxy | None = None
    """The site's HTTP proxy, for imports. Hooks inherit no proxy variables."""
    max_size: Size = 100 * GIB
    """Bytes that one import may use on a node ([all together](images.md#how-much-an-import-may-take))."""
    tag_ttl: Duration = DAY
    """How long a tag is trusted before the registry is asked again."""
    wait: Duration = 4 * MINUTE
    """How long a job waits while its image is imported; that goes on without it. Together with `seed.fetch_budget` it
    must be below Slurm's `PrologEpilogTimeout`."""
    keep: Keep = Keep()
    unpack: Unpack = Unpack()
    credentials: Credentials | None = None
    """What fetches [private images](../guides/private-images.md)."""

    @property
    def allowed(self) -> tuple[str, ...]:
        """The registries of the allow-list, as HOST or HOST:PORT."""
        return tuple(registry.removeprefix(PLAIN) for registry in self.registries)

    @property
    def insecure(self) -> tuple[str, ...]:
        """Those of them that are reached over plain HTTP."""
        return tuple(written.removeprefix(PLAIN) for written in self.registries if written.startswith(PLAIN))


class Seed(NamedTuple):
    """Bounds on what the prolog brings into a job's cache ([seeding](profiles.md#seeding))."""

    fetch_budget: Duration = 10
    """Time for fetching bundles to the node, per job."""
    keep: Size = 20 * GIB
    """Copies of bundles that `warmstart maintain` leaves on a node. Least recently used copies go first."""


class Harvest(NamedTuple):
    """Bounds on what the epilog takes out of a job's cache."""

    budget: Duration = 30
    """How long an epilog may hold the node for the harvest."""
    max_size: Size = 5 * GIB
    """Bytes harvested from one job; from one profile at most 8 GiB. Later jobs bring what was left out."""
    waiting: Count = 64
    """Runs on a node [that wait to be harvested](../operations/maintenance.md#runs-that-wait), as their epilogs had no
    time or no store; those of the user who has most go first. 0: what is not done within `budget` is lost."""
    only_successful: bool = False
    """Harvest only jobs that [ended well](#which-jobs-count-as-successful). Each epilog then asks the controller
    once."""
    while_running: Duration | None = None
    """When a job's caches are first harvested [while it runs](profiles.md#while-a-job-runs); then after twice as long,
    and so on."""


class Maintenance(NamedTuple):
    """Which bundles `warmstart maintain --store` keeps ([maintenance](../operations/maintenance.md))."""

    keep: Duration = 90 * DAY
    """Bundles that no node has used for this long are removed."""
    per_user: Size = 50 * GIB
    """Bytes in one user's scope; an account's may have ten times as many, the site's forty times. A bundle that would
    exceed it is not published. Above nine tenths, maintenance removes the least recently used bundles, down to eight
    tenths."""
    reports: Duration | None = 14 * DAY
    """How long a user can ask about an own job after its end, on each host with this store, without root: the last
    1,000 runs. `null`: not at all."""


class Limits(NamedTuple):
    """Bounds on who is served."""

    min_uid: Positive = 1000
    """Jobs of a lower uid, and of warmstart's three accounts, get nothing and publish nothing."""


class Trust(NamedTuple):
    """What this site's slurmctld enforces ([Verified and claimed](#verified-and-claimed))."""

    account: Literal["claimed", "enforced"] = "claimed"
    """`enforced` only if `AccountingStorageEnforce` has `associations`."""


class OnError(NamedTuple):
    """What a failure does to the job. None of these drains a node; only a fault of the node itself does."""

    image: Literal["fail-job", "run-without"] = "fail-job"
    """The image is not available ([what then](images.md#a-job-whose-image-is-not-ready))."""


class User(NamedTuple):
    """A user to whom the policy grants a right: name and uid, because uids are reused."""

    name: str
    uid: int


Users = tuple[User, ...]


class Publish(NamedTuple):
    """Who may publish into a scope above the user's ([Scopes and publishing](#scopes-and-publishing))."""

    users: Users
    """User names, no patterns. Each must exist on the node. Never an account that runs code which nobody has
    reviewed."""


class Rule(NamedTuple):
    """What some jobs get. The rules that match a job apply in order; later ones add to earlier ones."""

    name: Label
    """Shown by `warmstart plan` and in the audit log. Unique."""
    match: Match = Match()
    mode: Mode | None = None
    """`mode` for these jobs. The last matching rule's counts. A rule that matches `node` may only say `enforce`, for
    jobs of one node."""
    images: tuple[ImageReference, ...] = ()
    """Images that are ready before the job starts. Several rules add up."""
    profiles: tuple[Label, ...] = ()
    """[Profiles](profiles.md): tools whose caches are seeded and harvested. Several rules add up."""
    scope: Literal["user", "account", "site"] | None = None
    """The widest scope that the job is seeded from. The last matching rule's counts; without any, `user`. Above `user`,
    `match` may use verified attributes only."""
    publish: Publish | None = None
    """Who may publish into this rule's scope. Needs `scope` and `match.partition` in the same rule."""
    env: dict[Variable, Value] = {}  # noqa: RUF012 - never mutated
    """Environment variables of the job. A later rule's value replaces an earlier one's."""
    override: tuple[Variable, ...] = ()
    """Variables that users cannot change in these jobs: warmstart's value wins. Several rules add up."""
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
    """The whole policy: policy.yaml, with the rules of conf.d/*.yaml after its own; resolved for this node."""

    version: Literal[1]
    """Version of this format."""
    paths: Paths
    mode: Mode = "enforce"
    """`observe`: hooks write into the audit log what they would do, and touch nothing ([the
    roll-out](../operations/rollout.md))."""
    store_user: Account = account("warmstart")
    """Owner of the store. All store I/O has this uid, which is the same on every node."""
    import_user: Account = account("warmstart-import")
    """Account that shared imports run as."""
    validate_user: Account = account("warmstart-validate")
    """Account that parses what jobs wrote; nothing else does."""
    site_label: Label = "bare"
    """Names the software that jobs without an image run on. Change it with the nodes' system image, and their caches
    start anew."""
    constant_path: Literal["none", "spank", "namespace", "link", "containers", "enroot"] = "none"
    """[What brings a job's cache to `paths.cache`](../start/inside-the-job.md#where-the-cache-is) on this node, and
    shows it what else it is given. `none`: bare jobs have it at a path of their own, and profiles that need a constant
    path are left out."""
    audit: Audit = Audit()
    images: Images = Images()
    seed: Seed = Seed()
    harvest: Harvest = Harvest()
    maintenance: Maintenance = Maintenance()
    limits: Limits = Limits()
    trust: Trust = Trust()
    on_error: OnError = OnError()
    profiles: Profiles = ()  # once it is compiled, with that of `files`
    """Profiles of the site's own, by name. Rules turn them on."""
    files: Files = Files()
    rules: tuple[Rule, ...] = ()
    """What jobs get, in order."""
    signature: Signature = ()
    doubt: str = ""  # why accounts that it declares as enforced are not known to be
    own: dict[str, Json] = {}  # noqa: RUF012 - wings' sections that are in use, by key; never mutated
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
        with files.closing(files.open_regular(path)) as fd:
            status = os.fstat(fd)
            is_ours = not files.weakness(status, (0, os.geteuid()))
            return wire.parse(files.read_up_to(fd, min(status.st_size, _LARGEST) + 1)) if is_ours else None
    except (OSError, ValueError):
        return None


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

    def decoded(value: Json) -> Json:
        if type(value) is list:
            return tuple(map(decoded, value))
        if type(value) is dict and "" in value:
            name, *fields = value[""]
            return classes[name](*map(decoded, fields))
        return value

    policy = decoded(data["policy"])
    if not isinstance(policy, Policy):
        raise TypeError("not a policy")
    return policy
