"""The policy's keys: types, defaults, meanings. The only module that imports pydantic; never on a warm path.

A key is described here and nowhere else: `make docs` writes policies/schema.json and the tables of
docs/reference/policy.md from this module (`tools/policy_reference`). What hooks read of it is in `policy.compiled`;
checks across several keys are in `policy.checks`.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
    create_model,
)
from pydantic.json_schema import GenerateJsonSchema

from warmstart import wing
from warmstart.host.wire import Json
from warmstart.policy.document import Fault, Loc, fault
from warmstart.policy.units import (
    DURATION,
    PERCENT,
    PORTS,
    SIZE,
    parse_duration,
    parse_percent,
    parse_ports,
    parse_size,
)
from warmstart.slurm import nodes

LABEL = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
ACCOUNT = r"[A-Za-z_][A-Za-z0-9_.-]{0,31}"
USER = r"[^\s/:*?[\x00-\x1f\x7f-]([^/:*?[\x00-\x1f\x7f]{0,254}[^\s/:*?[\x00-\x1f\x7f])?"  # CORP\alice, alice smith
PATH = r"/[A-Za-z0-9_.@+=%/-]{1,1023}"
# No wider than what images.reference parses: a mistake is reported when the policy is loaded, not in every job.
_DNS_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_PORT = r"(6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}|[1-9][0-9]{0,3})"
_HOST = rf"{_DNS_LABEL}(\.{_DNS_LABEL})*(:{_PORT})?"
_PART = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
REGISTRY = rf"(?=localhost$|.*[.:])(?!(index|registry-1)\.docker\.io$)(?=.{{1,259}}$){_HOST}"
PLAIN = "http://"  # before a registry that has no TLS
PROXY = rf"(?=.{{1,259}}$){_DNS_LABEL}(\.{_DNS_LABEL})*:{_PORT}"
REFERENCE = (
    rf"(?=.{{1,264}}$)docker://({_HOST}/)?{_PART}(/{_PART})*"
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?"
)
# The name of a profile's directory in the store, in stages and in caches.
PROFILE = r"[a-z][a-z0-9-]{0,31}"
_SIGN = r"[A-Za-z0-9_.+@%=,~!-]"
_NAME_PART = rf"(?!\.{{1,2}}(/|$))({_SIGN}|\*(?!\*))+"
NAME_PATTERN = rf"(?=.{{1,128}}$){_NAME_PART}"
PATH_PATTERN = rf"(?=.{{1,256}}$)(?!.*\*\*.*\*\*)(\*\*|{_NAME_PART})(/(\*\*|{_NAME_PART})){{0,7}}/?"
VARIABLE = r"[A-Za-z_][A-Za-z0-9_]{0,127}"
_PRINTABLE = r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]"
# A value in a task prolog's output ends at the newline and is not quoted (Slurm's prolog_epilog.html).
VALUE = rf"{_PRINTABLE}{{0,4096}}"
GLOB = rf"((?![?\[\]]){_PRINTABLE}){{1,256}}"
HOST_LIST = rf"((?!\?){_PRINTABLE}){{1,256}}"
_MOST = 32  # patterns of a kind: root compares each with every name


def matching(pattern: str, what: str) -> AfterValidator:
    """Return a validator: the whole text matches `pattern`. `what` completes "… is not …" in its error."""
    compiled = re.compile(pattern)

    def check(text: str) -> str:
        if not compiled.fullmatch(text):
            raise ValueError(f"{text!a} is not {what}")
        return text

    return AfterValidator(check)


def in_schema(word: str, pattern: str) -> WithJsonSchema:
    """Return what policies/schema.json says of a type; docs/reference/policy.md calls it `word`."""
    return WithJsonSchema({"type": "string", "title": word, "pattern": f"^{pattern}$"})


def _host_list(text: str) -> str:
    try:
        nodes.expand(text)
    except ValueError as error:
        raise ValueError(f"{text!a} is not a host list, such as n[01-16],login*: {error}") from None
    return text


def _one_or_more(word: str) -> WithJsonSchema:
    anything = [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]
    return WithJsonSchema({"title": word, "anyOf": anything})


def _as_list(value: object) -> object:
    """Return a list of one for a text; return anything else unchanged."""
    return [value] if isinstance(value, str) else value


Label = Annotated[str, matching(LABEL, "a name: letters, digits and _.-, at most 64"), in_schema("name", LABEL)]
User = Annotated[str, matching(USER, "a user name"), in_schema("user", USER)]
Account = Annotated[str, matching(ACCOUNT, "a user name"), in_schema("account", ACCOUNT)]
Path = Annotated[str, matching(PATH, "an absolute path of letters, digits and _.@+=%-/"), in_schema("path", PATH)]
Registry = Annotated[
    str,
    matching(f"({PLAIN})?{REGISTRY}", "a registry: HOST or HOST:PORT in lower case, Docker Hub as docker.io"),
    in_schema("`HOST` or `HOST:PORT`", f"({PLAIN})?{REGISTRY}"),
]
Proxy = Annotated[str, matching(PROXY, "a proxy: HOST:PORT in lower case"), in_schema("`HOST:PORT`", PROXY)]
Reference = Annotated[
    str,
    matching(REFERENCE, "an image: docker://REGISTRY/REPOSITORY:TAG"),
    in_schema("`docker://REGISTRY/REPOSITORY:TAG` or `…@sha256:…`", REFERENCE),
]
Variable = Annotated[str, matching(VARIABLE, "a variable's name"), in_schema("variable", VARIABLE)]
Value = Annotated[str, matching(VALUE, "one line of at most 4096 printable characters"), in_schema("text", VALUE)]
Glob = Annotated[
    str,
    matching(GLOB, "a pattern: one line of at most 256 printable characters, with * alone, and no ?, [ and ]"),
    in_schema("pattern", GLOB),
]
HostList = Annotated[
    str,
    matching(HOST_LIST, "a host list, such as n[01-16],login*: of at most 256 characters, with * alone, and no ?"),
    AfterValidator(_host_list),
    in_schema("host list", HOST_LIST),
]
Globs = Annotated[list[Glob], BeforeValidator(_as_list), Field(min_length=1), _one_or_more("pattern or list")]
HostLists = Annotated[list[HostList], BeforeValidator(_as_list), Field(min_length=1), _one_or_more("host list or list")]
Profile = Annotated[
    str,
    matching(PROFILE, "a profile's name: lower-case letters, digits and -, at most 32"),
    in_schema("name", PROFILE),
]
AnyProfile = Annotated[str, WithJsonSchema({"type": "string", "title": "name"})]  # `checks` knows which ones exist
NamePattern = Annotated[
    str,
    matching(NAME_PATTERN, "a pattern of names: letters, digits, _.+@%=,~!- and *"),
    in_schema("name pattern", NAME_PATTERN),
]
PathPattern = Annotated[
    str,
    matching(PATH_PATTERN, "a pattern of paths: at most 8 names with *, one of them may be **"),
    in_schema("path pattern", PATH_PATTERN),
]
Duration = Annotated[int, BeforeValidator(parse_duration), in_schema("duration", DURATION)]
Size = Annotated[int, BeforeValidator(parse_size), in_schema("size", SIZE)]
Percent = Annotated[int, BeforeValidator(parse_percent), in_schema("share", PERCENT)]
Ports = Annotated[tuple[int, int], BeforeValidator(parse_ports), in_schema("`FIRST-LAST`", PORTS)]
Scope = Literal["user", "account", "site"]
Mode = Literal["observe", "enforce"]
DerivedFact = Literal["cpu", "driver", "gpu", "machine"]
# The names of the checks in `profiles.formats.by_name`.
Format = Literal[
    "any",
    "compressed",
    "cubin",
    "json",
    "library",
    "not-empty",
    "object",
    "pickle",
    "sha256-name",
    "text",
    "written",
]


class Section(BaseModel):
    """A mapping of the policy. Unknown keys and wrong types are refused."""

    # validate_default: defaults are written here as an admin writes them ("4m").
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, validate_default=True)


def key(default: object, meaning: str, **limits: int) -> Any:  # noqa: ANN401 - often text here, a number when checked
    """Return a field with a default in the form that an admin writes."""
    return Field(default=default, description=meaning, **limits)  # type: ignore[call-overload]


def required(meaning: str, **limits: int) -> Any:  # noqa: ANN401 - as pydantic's
    """Return a field without a default."""
    return Field(description=meaning, **limits)  # type: ignore[call-overload]


class Paths(Section):
    """Where things are. Each path is absolute and normal, and not below `/tmp`, `/dev`, `/proc` or `/sys`."""

    workspace: Path = key(
        "/var/tmp/warmstart",
        "Node-local disk for the jobs' workspaces, at most 46 bytes. It and its parents must belong to root, who alone "
        "may write in it.",
    )
    store: Path = Field(
        description="Directory on the shared file system that holds images and bundles. `store_user` owns it."
    )
    audit: Path = key(
        "/var/log/warmstart/audit.jsonl",
        "This node's audit log: [one JSON line](audit.md) for every decision.",
    )
    cache: Path = key(
        "/var/cache/warmstart",
        "The constant path: where jobs see their cache, in containers and where `constant_path` says so "
        "([inside the job](../start/inside-the-job.md)). An empty directory that belongs to root.",
    )
    metrics: Path | None = key(
        None,
        "Directory of node_exporter's textfile collector, in which maintenance writes "
        "[metrics](../operations/monitoring.md); root's, and nobody else's to write.",
    )
    shelf: Path | None = key(
        None,
        "Directory on a node-local disk where a node keeps images [unpacked](images.md#unpacked-once). You make it; "
        "its parents must belong to root.",
    )
    scontrol: Path = key(
        "/usr/bin/scontrol",
        "Slurm's `scontrol`. It sets the reason of a node that must drain, and shows what slurmctld runs "
        "with. `squeue`, in the same directory, tells how a job ended, whether it is over, and on the controller its "
        "QOS. Of several Slurms on a node `warmstart doctor` judges the one that it belongs to.",
    )


class Audit(Section):
    """Where audit events go besides `paths.audit`, [which has all of them](audit.md)."""

    syslog: bool = key(False, "Send each line to the host's `/dev/log`, too: to systemd's journal, or to syslog.")


class Match(Section):
    """Which jobs a rule is for. All keys must match; of a list, one pattern is enough. Patterns are case-sensitive."""

    partition: Globs | None = key(None, "The job's partition. Verified.")
    account: Globs | None = key(None, "The job's account. Claimed, unless `trust.account` is `enforced`.")
    user: Globs | None = key(None, "The job's user name. Verified.")
    group: Globs | None = key(None, "Any group that the user is in according to the node's own NSS. Verified.")
    node: HostLists | None = key(None, "The node's Slurm name, as a host list: `n[01-16]`, `gpu*`. Verified.")
    qos: Globs | None = key(
        None,
        "The job's QOS, which slurmd tells since 26.05 ([before](#what-slurmd-does-not-tell)). Claimed.",
    )
    job_name: Globs | None = key(
        None, "The job's name, [which slurmd does not tell](#what-slurmd-does-not-tell). Claimed."
    )


class Keep(Section):
    """How much of the store's file system images may use; which are [evicted first](images.md#space)."""

    high: Percent = key("85%", "Share of the store's file system in use above which images are evicted.")
    low: Percent = key("70%", "Share in use at which eviction ends. Least recently used images go first.")
    lease: Duration = key(
        "7d", "How long a node's last use protects an image from eviction. Set it longer than your longest job."
    )


class PrivateRepository(Section):
    """Images that the site's own credentials fetch, and the jobs that may read them."""

    name: Label = Field(description="Name of the directory of the store that holds them. Unique.")
    repository: Glob = Field(
        description="`REGISTRY/REPOSITORY`, a pattern from the first slash on: `reg.example.com/team/*`."
    )
    match: Match = Field(
        description="The jobs that may read them, as in `rules[].match`. Verified attributes only; not empty."
    )


class Credentials(Section):
    """The site's own credentials at registries ([private images](../guides/private-images.md))."""

    file: Path = Field(
        description="File that `skopeo login --authfile` writes. It belongs to root, has mode 0600 and is neither in "
        "the store nor in the workspace."
    )
    repositories: Annotated[list[PrivateRepository], Field(min_length=1)] = Field(
        description="The first that fits the job and the image counts."
    )


class Unpack(Section):
    """What a node with `paths.shelf` keeps [unpacked](images.md#unpacked-once)."""

    keep: Size = key(
        "200GiB", "Bytes of unpacked images on a node. The least recently used of the user who has most go first."
    )
    any_disk: bool = key(
        False, "Unpack also where `paths.shelf` is on a tmpfs, which takes memory, or on an overlay, as in a pod."
    )


class Images(Section):
    """Which [images](images.md) may be imported, and how."""

    importer: Literal["auto", "enroot", "oci"] = key(
        "auto",
        "`oci` is skopeo, umoci and mksquashfs; `auto` is oci, but enroot if `/usr/bin/enroot` exists and "
        "`/usr/bin/umoci` does not.",
    )
    registries: list[Registry] = key(
        [],
        "Allow-list, for images of the policy and for those that jobs ask for. Docker Hub is `docker.io`. A test "
        "registry without TLS is `http://HOST:PORT`.",
    )
    proxy: Proxy | None = key(None, "The site's HTTP proxy, for imports. Hooks inherit no proxy variables.")
    max_size: Size = key(
        "100GiB",
        "Bytes that one import may use on a node ([all together](images.md#how-much-an-import-may-take)).",
    )
    tag_ttl: Duration = key("24h", "How long a tag is trusted before the registry is asked again.")
    wait: Duration = key(
        "4m",
        "How long a job waits while its image is imported; that goes on without it. Together with "
        "`seed.fetch_budget` it must be below Slurm's `PrologEpilogTimeout`.",
    )
    keep: Keep = Field(default_factory=Keep)
    unpack: Unpack = Field(default_factory=Unpack)
    credentials: Credentials | None = key(
        None,
        "What fetches [private images](../guides/private-images.md).",
    )


class Seed(Section):
    """Bounds on what the prolog brings into a job's cache ([seeding](profiles.md#seeding))."""

    fetch_budget: Duration = key("10s", "Time for fetching bundles to the node, per job.")
    keep: Size = key(
        "20GiB", "Copies of bundles that `warmstart maintain` leaves on a node. Least recently used copies go first."
    )


class Harvest(Section):
    """Bounds on what the epilog takes out of a job's cache."""

    budget: Duration = key("30s", "How long an epilog may hold the node for the harvest.")
    max_size: Size = key(
        "5GiB",
        "Bytes harvested from one job; from one profile at most 8 GiB. Later jobs bring what was left out.",
    )
    spool: Size = key(
        "5GiB",
        "Bytes that a node keeps of [bundles that the store did not take](../operations/maintenance.md); "
        "those of the user who has most go first.",
    )
    deferred: int = key(
        8,
        "Runs on a node whose epilogs had no time, and whose caches wait for `warmstart maintain`. 0: what is"
        " not done within `budget` is lost.",
        ge=0,
    )
    only_successful: bool = key(
        False,
        "Harvest only jobs that [ended well](#which-jobs-count-as-successful). Each epilog then asks the "
        "controller once.",
    )
    while_running: Duration | None = key(
        None,
        "When a job's caches are first harvested [while it runs](profiles.md#while-a-job-runs); then after "
        "twice as long, and so on.",
    )


class Maintenance(Section):
    """Which bundles `warmstart maintain --store` keeps ([maintenance](../operations/maintenance.md))."""

    keep: Duration = key("90d", "Bundles that no node has used for this long are removed.")
    per_user: Size = key(
        "50GiB",
        "Bytes in one user's scope; an account's may have ten times as many, the site's forty times. A bundle that "
        "would exceed it is not published. Above nine tenths, maintenance removes the least recently used bundles, "
        "down to eight tenths.",
    )
    reports: Duration | None = key(
        "14d",
        "How long a user can ask about an own job after its end, on each host with this store, without root: the last "
        "1,000 runs. `null`: not at all.",
    )


class Limits(Section):
    """Bounds on who is served."""

    min_uid: int = key(
        1000, "Jobs of a lower uid, and of warmstart's three accounts, get nothing and publish nothing.", ge=1
    )


class Trust(Section):
    """What this site's slurmctld enforces ([Verified and claimed](#verified-and-claimed))."""

    account: Literal["claimed", "enforced"] = key(
        "claimed",
        "`enforced` only if `AccountingStorageEnforce` has `associations`.",
    )


class OnError(Section):
    """What a failure does to the job. None of these drains a node; only a fault of the node itself does."""

    image: Literal["fail-job", "run-without"] = key(
        "fail-job",
        "The image is not available ([what then](images.md#a-job-whose-image-is-not-ready)).",
    )


class DefinedProfile(Section):
    """[A profile of the site's own](profiles.md#a-profile-of-your-own). `NAME` is the profile's name."""

    variables: Annotated[dict[Variable, Value], Field(min_length=1)] = Field(
        description="Variables that point the tool at its cache. `{dir}` is the profile's directory in the job's "
        "cache; at least one value has it."
    )
    entries: Annotated[list[PathPattern], Field(min_length=1, max_length=_MOST)] = Field(
        description="What is published whole: `PATTERN/` is a directory with everything in it, `PATTERN` a file. The "
        "first that fits counts; what fits none is never harvested."
    )
    never: Annotated[list[NamePattern], Field(max_length=_MOST)] = key(
        [],
        "Names of files and directories that are left out, besides `*.lock`, `*.tmp`, `*.part`, "
        "`*.incomplete`, `lock`, `locks`, `tmp.*` and names that begin with a dot.",
    )
    needs: Annotated[list[NamePattern], Field(max_length=_MOST)] = key(
        [], "Names of files. An entry without at least one of each is `incomplete`."
    )
    formats: Annotated[dict[NamePattern, Format], Field(max_length=_MOST)] = key(
        {},
        "[Formats](profiles.md#formats) of files, by name. The first pattern that fits counts; files that fit"
        " none are not opened.",
    )
    facts: list[DerivedFact] = key([], "What must be the same besides the image.")
    relocation: Literal["relocatable", "constant-path"] = key(
        "constant-path",
        "`relocatable` if entries work at another path: try it with a copy of a warm cache.",
    )
    max_size: Size = key("1GiB", "Bytes of one entry. Larger entries are refused.")
    in_step: bool = key(
        False,
        "The tool compiles in step with its job's other ranks ([jobs on several "
        "nodes](profiles.md#jobs-on-several-nodes)).",
    )
    only_successful: bool = key(False, "Harvest it only from jobs that [ended well](#which-jobs-count-as-successful).")


class Files(Section):
    """Files that jobs declare with `files=NAME` and leave in `$WARMSTART_FILES` ([profiles](profiles.md))."""

    include: Annotated[list[PathPattern], Field(min_length=1, max_length=_MOST)] = key(
        ["**"], "What is kept: `PATTERN/` is a directory with everything in it, `PATTERN` a file."
    )
    never: Annotated[list[NamePattern], Field(max_length=_MOST)] = key(
        [], "Names of files and directories that are left out, besides locks and temporary files."
    )
    hidden: bool = key(
        False, "Keep files, too, whose name or a directory's name above them begins with a dot; never leftovers."
    )
    facts: list[DerivedFact] = key(["gpu"], "What must be the same besides the image and the declared name.")
    max_size: Size = key(
        "1GiB",
        "Bytes of one file, or of one directory that is kept whole; at most 8 GiB.",
    )
    only_successful: bool = key(
        True,
        "Keep only files of jobs that [ended well](#which-jobs-count-as-successful).",
    )


class Publish(Section):
    """Who may publish into a scope above the user's ([Scopes and publishing](#scopes-and-publishing))."""

    users: Annotated[list[User], Field(min_length=1)] = Field(
        description="User names, no patterns. Each must exist on the node. Never an account that runs code which "
        "nobody has reviewed."
    )


class Rule(Section):
    """What some jobs get. The rules that match a job apply in order; later ones add to earlier ones."""

    name: Label = Field(description="Shown by `warmstart plan` and in the audit log. Unique.")
    match: Match = Field(default_factory=Match)
    mode: Mode | None = key(
        None,
        "`mode` for these jobs. The last matching rule's counts. A rule that matches `node` may only say `enforce`, "
        "for jobs of one node.",
    )
    images: list[Reference] = key([], "Images that are ready before the job starts. Several rules add up.")
    profiles: list[AnyProfile] = key(
        [], "[Profiles](profiles.md): tools whose caches are seeded and harvested. Several rules add up."
    )
    scope: Scope | None = key(
        None,
        "The widest scope that the job is seeded from. The last matching rule's counts; without any, `user`. "
        "Above `user`, `match` may use verified attributes only.",
    )
    publish: Publish | None = key(
        None, "Who may publish into this rule's scope. Needs `scope` and `match.partition` in the same rule."
    )
    env: dict[Variable, Value] = key(
        {}, "Environment variables of the job. A later rule's value replaces an earlier one's."
    )
    override: list[Variable] = key(
        [], "Variables that users cannot change in these jobs: warmstart's value wins. Several rules add up."
    )


class PolicyModel(Section):
    """The whole policy: policy.yaml, with the rules of conf.d/*.yaml after its own."""

    version: Literal[1] = Field(description="Version of this format.")
    mode: Mode = key(
        "enforce",
        "`observe`: hooks write into the audit log what they would do, and touch nothing "
        "([the roll-out](../operations/rollout.md)).",
    )
    paths: Paths
    store_user: Account = key(
        "warmstart", "Owner of the store. All store I/O has this uid, which is the same on every node."
    )
    import_user: Account = key("warmstart-import", "Account that shared imports run as.")
    validate_user: Account = key("warmstart-validate", "Account that parses what jobs wrote; nothing else does.")
    site_label: Label = key(
        "bare",
        "Names the software that jobs without an image run on. Change it with the nodes' system image, and "
        "their caches start anew.",
    )
    constant_path: Literal["none", "spank", "namespace", "link", "containers", "enroot"] = key(
        "none",
        "[What brings a job's cache to `paths.cache`](../start/inside-the-job.md#where-the-cache-is) on this "
        "node, and shows it what else it is given: the SPANK plugin; a mount by Slurm's CloneNSScript "
        "(24.11); a link in a directory that job_container gives to each job; a runtime of containers; "
        "enroot's hook. `none`: bare jobs have it at a path of their own, and profiles that need a constant "
        "path are left out.",
    )
    audit: Audit = Field(default_factory=Audit)
    images: Images = Field(default_factory=Images)
    seed: Seed = Field(default_factory=Seed)
    harvest: Harvest = Field(default_factory=Harvest)
    maintenance: Maintenance = Field(default_factory=Maintenance)
    limits: Limits = Field(default_factory=Limits)
    trust: Trust = Field(default_factory=Trust)
    on_error: OnError = Field(default_factory=OnError)
    profiles: dict[Profile, DefinedProfile] = key({}, "Profiles of the site's own, by name. Rules turn them on.")
    files: Files = Field(default_factory=Files)
    rules: list[Rule] = key([], "What jobs get, in order.")


@cache
def whole() -> type[PolicyModel]:
    """Return the policy with the keys of all wings that are here."""
    keys: dict[str, Any] = {}
    sections: dict[str, Any] = {}
    for module in wing.with_part("policy"):
        keys |= wing.load(module).RULE_KEYS
        sections |= {key: (kind, Field(default_factory=kind)) for key, kind in wing.load(module).SECTIONS.items()}
    rule = create_model("Rule", __base__=Rule, __doc__=Rule.__doc__, **keys)
    rules: Any = (list[rule], PolicyModel.model_fields["rules"])  # type: ignore[valid-type]
    return create_model("PolicyModel", __base__=PolicyModel, __doc__=PolicyModel.__doc__, rules=rules, **sections)


def check_shape(data: object) -> PolicyModel | list[Fault]:
    """Return the model of plain YAML data, or every fault of its keys, types and values."""
    try:
        return whole().model_validate(data)
    except ValidationError as error:
        return [fault(item, known_keys) for item in error.errors(include_url=False)]


def known_keys(loc: Loc) -> list[str]:
    """Return the keys that the mapping at `loc` may have."""
    section: type[Section] = whole()
    parts = iter(loc)
    for part in parts:
        if isinstance(part, str):
            annotation = section.model_fields[part].annotation
            section = _section_in(annotation)
            if get_origin(annotation) is dict:
                next(parts, None)  # the admin's own name
    return list(section.model_fields)


def _section_in(annotation: Any) -> type[Section]:  # noqa: ANN401 - what typing calls an annotation
    for candidate in (annotation, *get_args(annotation)):
        if isinstance(candidate, type) and issubclass(candidate, Section):
            return candidate
    raise TypeError(f"no section in {annotation!r}")


class _TypeTitles(GenerateJsonSchema):
    """Leave `title` to the words for types; pydantic would set it to each key's name."""

    def field_title_should_be_set(self, schema: object) -> bool:  # noqa: ARG002 - pydantic's interface
        return False


def json_schema() -> Json:
    """Return the JSON Schema of policy.yaml; its `$defs` are the sections."""
    schema = whole().model_json_schema(schema_generator=_TypeTitles)
    return {**schema, "$schema": "https://json-schema.org/draft/2020-12/schema", "title": "warmstart policy"}
