"""The policy's keys: types, defaults, what each is for. The only module that imports pydantic; never on a warm path.

`python -m warmstart.policy.schema` prints policies/schema.json. Every key has an effect: one that is accepted and
ignored is worse than one that is refused. Checks across several keys are in `policy.checks`.

Durations and sizes are a whole number and its unit. A bare number is refused: nobody should have to guess whether
`wait: 4` means seconds or minutes.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, WithJsonSchema

from warmstart.policy.document import Fault, Loc, fault
from warmstart.profiles.defined import Format

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
BYTES = {"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}
# Nine digits: larger numbers are typing errors, and stay far below 2**63 in every unit.
DURATION = r"[1-9][0-9]{0,8}[smhd]"
SIZE = r"[1-9][0-9]{0,8}([KMGT]i)?B"
PERCENT = r"[1-9]?[0-9]%"
PORTS = r"[1-9][0-9]{3,4}-[1-9][0-9]{3,4}"
_LOWEST_PORT, _HIGHEST_PORT = 1024, 65535  # below, ports are root's (ip(7))
LABEL = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
ACCOUNT = r"[A-Za-z_][A-Za-z0-9_.-]{0,31}"
PATH = r"/[A-Za-z0-9_.@+=%/-]{1,1023}"
# No wider than what images.reference parses: an admin's slip is told here, and not to every job.
_DNS_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_PORT = r"(6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}|[1-9][0-9]{0,3})"
_HOST = rf"{_DNS_LABEL}(\.{_DNS_LABEL})*(:{_PORT})?"
_PART = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
REGISTRY = rf"(?=localhost$|.*[.:])(?!(index|registry-1)\.docker\.io$)(?=.{{1,259}}$){_HOST}"
# What a registry may send an import to; `*.` stands for any number of labels.
DESTINATION = rf"(?=.{{1,259}}$)(\*\.)?{_HOST}"
PROXY = rf"(?=.{{1,259}}$){_DNS_LABEL}(\.{_DNS_LABEL})*:{_PORT}"
REFERENCE = (
    rf"(?=.{{1,264}}$)docker://({_HOST}/)?{_PART}(/{_PART})*"
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?"
)
# A profile's directory in the store, in stages, in caches: one word.
PROFILE = r"[a-z][a-z0-9-]{0,31}"
_SIGN = r"[A-Za-z0-9_.+@%=,~?!\[\]-]"
_NAME_PART = rf"(?!\.{{1,2}}(/|$))({_SIGN}|\*(?!\*))+"
NAME_PATTERN = rf"(?=.{{1,128}}$){_NAME_PART}"
PATH_PATTERN = rf"(?=.{{1,256}}$)(?!.*\*\*.*\*\*)(\*\*|{_NAME_PART})(/(\*\*|{_NAME_PART})){{0,7}}/?"
VARIABLE = r"[A-Za-z_][A-Za-z0-9_]{0,127}"
_PRINTABLE = r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]"
# A task prolog's value ends at the newline and is not quoted (Slurm's prolog_epilog.html).
VALUE = rf"{_PRINTABLE}{{0,4096}}"
GLOB = rf"{_PRINTABLE}{{1,256}}"
_MOST = 32  # patterns of a kind: root compares each with every name


def parse_duration(text: object) -> int:
    """Return the seconds of `30s`, `4m`, `24h` or `7d`; `ValueError` says what to write instead."""
    if not isinstance(text, str) or not re.fullmatch(DURATION, text):
        raise ValueError(f"{text!a} is not a duration; write a number and s, m, h or d: 30s, 4m")
    return int(text[:-1]) * SECONDS[text[-1]]


def parse_size(text: object) -> int:
    """Return the bytes of `512MiB` or `1GiB`; `ValueError` says what to write instead."""
    if not isinstance(text, str) or not re.fullmatch(SIZE, text):
        units = ", ".join(BYTES)
        raise ValueError(f"{text!a} is not a size; write a number and one of {units}: 1GiB")
    number = text.rstrip("BKMGTi")
    return int(number) * BYTES[text[len(number) :]]


def _parse_percent(text: object) -> int:
    """Return the number of `85%`, 0 to 99; `ValueError` says what to write instead."""
    if not isinstance(text, str) or not re.fullmatch(PERCENT, text):
        raise ValueError(f"{text!a} is not a share; write a number from 0 to 99 and %: 85%")
    return int(text[:-1])


def parse_ports(text: object) -> tuple[int, int]:
    """Return both ends of `20000-29999`; `ValueError` says what to write instead."""
    if not isinstance(text, str) or not re.fullmatch(PORTS, text):
        raise ValueError(f"{text!a} is not a range of ports; write the first and the last one: 20000-29999")
    low, high = map(int, text.split("-"))
    if not _LOWEST_PORT <= low <= high <= _HIGHEST_PORT:
        raise ValueError(f"{text!a}: write a range between {_LOWEST_PORT} and {_HIGHEST_PORT}, the lower end first")
    return low, high


def _matching(pattern: str, what: str) -> AfterValidator:
    """Return a check that a text matches `pattern` as a whole; `what` names such a text."""
    compiled = re.compile(pattern)

    def check(text: str) -> str:
        if not compiled.fullmatch(text):
            raise ValueError(f"{text!a} is not {what}")
        return text

    return AfterValidator(check)


def _in_schema(pattern: str) -> WithJsonSchema:
    """Return the pattern for policies/schema.json."""
    return WithJsonSchema({"type": "string", "pattern": f"^{pattern}$"})


def _as_list(value: object) -> object:
    """Return a list for a single text, anything else as it is."""
    return [value] if isinstance(value, str) else value


Label = Annotated[str, _matching(LABEL, "a name: letters, digits and _.-, at most 64"), _in_schema(LABEL)]
Account = Annotated[str, _matching(ACCOUNT, "a user name"), _in_schema(ACCOUNT)]
Path = Annotated[str, _matching(PATH, "an absolute path of letters, digits and _.@+=%-/"), _in_schema(PATH)]
Registry = Annotated[
    str,
    _matching(REGISTRY, "a registry: HOST or HOST:PORT in lower case, Docker Hub as docker.io"),
    _in_schema(REGISTRY),
]
Destination = Annotated[
    str,
    _matching(DESTINATION, "a host: HOST, HOST:PORT or *.DOMAIN in lower case"),
    _in_schema(DESTINATION),
]
Proxy = Annotated[str, _matching(PROXY, "a proxy: HOST:PORT in lower case"), _in_schema(PROXY)]
Reference = Annotated[
    str,
    _matching(REFERENCE, "an image: docker://REGISTRY/REPOSITORY:TAG"),
    _in_schema(REFERENCE),
]
Variable = Annotated[str, _matching(VARIABLE, "a variable's name"), _in_schema(VARIABLE)]
Value = Annotated[str, _matching(VALUE, "one line of at most 4096 printable characters"), _in_schema(VALUE)]
Glob = Annotated[str, _matching(GLOB, "one line of at most 256 printable characters"), _in_schema(GLOB)]
Globs = Annotated[
    list[Glob],
    BeforeValidator(_as_list),
    Field(min_length=1),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}),
]
Profile = Annotated[
    str, _matching(PROFILE, "a profile's name: lower-case letters, digits and -, at most 32"), _in_schema(PROFILE)
]
NamePattern = Annotated[
    str,
    _matching(NAME_PATTERN, "a pattern of names: letters, digits, _.+@%=,~-, *, ? and [...]"),
    _in_schema(NAME_PATTERN),
]
PathPattern = Annotated[
    str,
    _matching(PATH_PATTERN, "a pattern of paths: at most 8 names with *, ? and [...], one of them may be **"),
    _in_schema(PATH_PATTERN),
]
Duration = Annotated[int, BeforeValidator(parse_duration), _in_schema(DURATION)]
Size = Annotated[int, BeforeValidator(parse_size), _in_schema(SIZE)]
Percent = Annotated[int, BeforeValidator(_parse_percent), _in_schema(PERCENT)]
Ports = Annotated[tuple[int, int], BeforeValidator(parse_ports), _in_schema(PORTS)]
Scope = Literal["user", "account", "site"]
DerivedFact = Literal["cpu", "driver", "gpu", "machine"]
_GPU: list[DerivedFact] = ["gpu"]


class Section(BaseModel):
    """What every mapping of the policy has in common: unknown keys and wrong types are refused."""

    # validate_default: defaults stand in the schema as an admin writes them ("4m").
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, validate_default=True)


def _default(written: str, description: str) -> Any:  # noqa: ANN401 - text here, a number after validation
    """Return the field whose default is `written`, as an admin would write it."""
    return Field(default=written, description=description)


class Paths(Section):
    """Where things are."""

    workspace: Path = Field(
        default="/var/tmp/warmstart",
        description="Node-local disk for the jobs' workspaces; its parents must be root's.",
    )
    store: Path = Field(
        description="Directory on the shared file system that holds images and bundles; store_user owns it."
    )
    audit: Path = Field(
        default="/var/log/warmstart/audit.jsonl",
        description="The audit log of this node: one JSON line for every decision.",
    )
    cache: Path = Field(
        default="/var/cache/warmstart",
        description="The constant path: where jobs see their cache, in containers and where `constant_path` says so. "
        "An empty directory of root's.",
    )
    scontrol: Path = Field(
        default="/usr/bin/scontrol",
        description="Gives a node that must drain a reason that people understand; tells `warmstart maintain` "
        "whether a job is over, and on the controller a job's QOS. squeue is expected in the same directory.",
    )


class Match(Section):
    """Which jobs a rule is for: every key given must match; of a list, one pattern. Globs, case-sensitive."""

    partition: Globs | None = Field(default=None, description="The job's partition. Verified.")
    account: Globs | None = Field(
        default=None, description="The job's account. Claimed, unless trust.account is enforced."
    )
    user: Globs | None = Field(default=None, description="The job's user name. Verified.")
    group: Globs | None = Field(
        default=None, description="A group that the user is in, as this node's own NSS says. Verified."
    )
    node: Globs | None = Field(default=None, description="The node's Slurm name. Verified.")
    constraint: Globs | None = Field(default=None, description="The job's --constraint, as it was given. Claimed.")
    qos: Globs | None = Field(
        default=None,
        description="The job's QOS; needs the controller's spec before Slurm 26.05. "
        "Claimed, unless trust.qos is enforced.",
    )
    job_name: Globs | None = Field(default=None, description="The job's name; needs the controller's spec. Claimed.")
    array: Globs | None = Field(
        default=None,
        description="JOBID_TASKID of an array's task, `*` for any; needs the controller's spec. Claimed.",
    )


class Adopt(Section):
    """A directory from which images that other launchers made are taken over."""

    directory: Path = Field(description="Nobody but its owners, store_user and root may write it or a parent.")
    owners: Annotated[list[Account], Field(min_length=1)] = Field(
        description="Users whose files are taken; each must exist on the node."
    )


class Keep(Section):
    """How much of the store's file system images may take, and which go first."""

    high: Percent = _default("85%", "Share of the store's file system in use above which images are evicted.")
    low: Percent = _default("70%", "Share at which eviction ends; least recently used first.")
    floor: Percent = _default("2%", "Share that stays free: an import that would take it fails with store-full.")
    lease: Duration = _default(
        "7d",
        "How long a node's last use protects an image from eviction; longer than the longest job.",
    )
    user: Size | None = Field(
        default=None,
        description="Bytes of images that one user's jobs may have brought in; the user's own oldest ones go first.",
    )
    account: Size | None = Field(default=None, description="The same for an account. Needs trust.account: enforced.")


class PrivateRepository(Section):
    """Images that the site's own credentials fetch, and the jobs that may have them."""

    name: Label = Field(description="The directory of the store that holds them; unique.")
    repository: Glob = Field(description="REGISTRY/REPOSITORY, a glob from the first slash on: reg.example.com/team/*")
    match: Match = Field(description="The jobs that may read them: by verified attributes alone.")


class Credentials(Section):
    """The site's own credentials at registries; docs/private-images.md."""

    file: Path = Field(description="What `skopeo login --authfile` writes; root's, 0600, not below the policy's store.")
    repositories: Annotated[list[PrivateRepository], Field(min_length=1)] = Field(
        description="What they are used for, and for whom. The first that fits a job and an image counts."
    )


class Images(Section):
    """Which images may be imported, and how."""

    importer: Literal["auto", "enroot", "oci"] = Field(
        default="auto",
        description="What imports images: `enroot`; `oci` (skopeo, umoci, mksquashfs); "
        "`auto`: enroot where /usr/bin/enroot is, else oci.",
    )
    registries: list[Registry] = Field(
        default_factory=list,
        description="Allow-list: an image of any other registry is refused. Docker Hub is docker.io.",
    )
    insecure: list[Registry] = Field(
        default_factory=list,
        description="Of `registries`, those reached over plain http. For test registries only.",
    )
    hosts: list[Destination] = Field(
        default_factory=list,
        description="Other hosts of the site that a registry may send an import to (mirrors, token services, storage). "
        "Public addresses need no entry; private ones, loopback and link-local are refused without one.",
    )
    proxy: Proxy | None = Field(
        default=None,
        description="The site's HTTP proxy, for imports: HOST:PORT. Hooks inherit no variable that says it.",
    )
    max_size: Size = _default(
        "100GiB", "Bytes that one import may take on a node: its layers, what they expand to, and the result."
    )
    max_files: int = Field(
        default=1_000_000, ge=1000, description="Files and directories that one import may make on a node."
    )
    tag_ttl: Duration = _default("24h", "How long a tag is trusted before the registry is asked again.")
    wait: Duration = _default(
        "4m",
        "How long a job waits while another one imports its image; below Slurm's PrologEpilogTimeout.",
    )
    remember_failures: Duration = _default(
        "30s",
        "How long a registry's definitive answer (no such image, no access), or its silence about a tag that is "
        "known, is not asked for again.",
    )
    verify: Literal["superblock", "full"] = Field(
        default="superblock",
        description="What is looked at when an image is used: its superblock, or every byte (once per file).",
    )
    lock: Literal["private", "beside"] = Field(
        default="private",
        description="`beside`: an import also takes NAME.sqsh.lock in `names`, as flock(1) launchers do.",
    )
    names: Path | None = Field(
        default=None,
        description="Directory where other launchers look for images as NAME.sqsh; links are kept there "
        "if only store_user can write it.",
    )
    adopt: list[Adopt] = Field(
        default_factory=list,
        description="Where images that other launchers made are taken over from, by copy, for references by tag.",
    )
    keep: Keep = Field(default_factory=Keep, description="Which images stay when space gets short.")
    credentials: Credentials | None = Field(
        default=None, description="The site's own credentials, and the private images that they fetch."
    )


class Seed(Section):
    """Bounds on what the prolog brings into a job's cache."""

    fetch_budget: Duration = _default("10s", "Time for fetching bundles to the node, per job.")
    max_fetch: Size = _default("1GiB", "Bytes of bundles fetched to the node, per job.")
    keep: Size = _default("20GiB", "Copies of bundles that maintenance leaves on the node, the last used.")


class Harvest(Section):
    """Bounds on what the epilog takes out of a job's cache."""

    budget: Duration = _default("30s", "How long an epilog may hold the node for the harvest.")
    max_size: Size = _default("5GiB", "Bytes harvested from one job.")
    max_entries: int = Field(default=50_000, ge=1, description="Entries harvested from one job.")
    spool: Size = _default("5GiB", "What the store does not take is kept on the node, up to this much.")
    deferred: int = Field(
        default=8,
        ge=0,
        description="Deferred harvests on a node: runs whose epilogs had no time, and whose caches wait there for "
        "`warmstart maintain`.",
    )
    only_successful: bool = Field(
        default=False,
        description="Harvest only jobs that ended well. Each epilog then asks the controller once.",
    )


class Maintenance(Section):
    """Which bundles maintenance leaves in the store."""

    keep: Duration = _default("90d", "A bundle that no node has used for so long is removed.")
    per_user: Size = _default("50GiB", "Bundles in one user's scope; those unused for longest go first.")
    per_account: Size = _default("500GiB", "Bundles in one account's scope.")
    per_site: Size = _default("2TiB", "Bundles in the site's scope.")


class Limits(Section):
    """Bounds on who is served."""

    min_uid: int = Field(default=1000, ge=1, description="Jobs of a lower uid get nothing and give nothing.")
    keep: Duration | None = Field(
        default=None,
        description="How long a job's TMPDIR stays on the node after it, where the job asks for it "
        "(--warm-keep). null: no job may.",
    )


class Trust(Section):
    """What this site's slurmctld makes sure of."""

    account: Literal["claimed", "enforced"] = Field(
        default="claimed",
        description="`enforced` only where AccountingStorageEnforce has associations: "
        "otherwise any user may write any account into a job.",
    )
    qos: Literal["claimed", "enforced"] = Field(
        default="claimed",
        description="`enforced` only where AccountingStorageEnforce has qos: "
        "otherwise a job's QOS is not one that its user was given.",
    )


class Slurmctld(Section):
    """The optional hooks on the controller, which tell the nodes what slurmd does not (docs/slurmctld-hooks.md)."""

    spec_directory: Path | None = Field(
        default=None,
        description="Directory on the shared filesystem where they leave job specs; `user` owns it, 0755. "
        "Without it nodes look for none.",
    )
    user: Account = Field(default="slurm", description="SlurmUser: a spec of any other owner is not believed.")
    deadline: Duration = _default(
        "2s", "How long a job waits for slurmctld's answer, and a node's prolog for the spec."
    )
    conf: Path | None = Field(
        default=None, description="slurm.conf on the controller, where Slurm does not find it by itself."
    )


class OnError(Section):
    """What a failure does to the job; only a fault of the node itself drains it."""

    store: Literal["run-cold", "fail-job"] = Field(
        default="run-cold",
        description="The shared store does not work: the job runs with a cold cache, or fails with a reason.",
    )
    image: Literal["fail-job", "run-without"] = Field(
        default="fail-job",
        description="The image is not available: the job fails with a reason, or runs without WARMSTART_IMAGE.",
    )
    bug: Literal["run-without", "fail-job"] = Field(
        default="run-without",
        description="A bug in warmstart: the job runs without warmstart, or fails with a reason.",
    )


class DefinedProfile(Section):
    """A cache that warmstart does not know: its variables, its entries, how they are checked (docs/profiles.md)."""

    variables: Annotated[dict[Variable, Value], Field(min_length=1)] = Field(
        description="What points the tool at its cache; {dir} is the profile's directory in the job's cache."
    )
    entries: Annotated[list[PathPattern], Field(min_length=1, max_length=_MOST)] = Field(
        description="What is published whole: PATTERN/ a directory with all that is in it, PATTERN a file."
    )
    never: Annotated[list[NamePattern], Field(max_length=_MOST)] = Field(
        default_factory=list,
        description="Names of files and directories that are left out, besides locks and temporary files.",
    )
    needs: Annotated[list[NamePattern], Field(max_length=_MOST)] = Field(
        default_factory=list, description="Names of files without which an entry is not complete."
    )
    formats: Annotated[dict[NamePattern, Format], Field(max_length=_MOST)] = Field(
        default_factory=dict,
        description="How files are checked, by their names; the first that fits counts, others are not looked into.",
    )
    facts: list[DerivedFact] = Field(
        default_factory=list, description="What must be the same besides the image: what entries depend on."
    )
    relocation: Literal["relocatable", "constant-path"] = Field(
        default="constant-path", description="Whether entries are of use at another path than where they were made."
    )
    max_size: Size = _default("1GiB", "Bytes of one entry; a larger one is refused.")
    only_successful: bool = Field(default=False, description="Harvest it only from jobs that ended well.")


class Files(Section):
    """Files that jobs declare with `files=NAME` and leave in $WARMSTART_FILES."""

    include: Annotated[list[PathPattern], Field(min_length=1, max_length=_MOST)] = Field(
        default_factory=lambda: ["**"],
        description="What is kept: PATTERN/ a directory with all that is in it, PATTERN a file.",
    )
    never: Annotated[list[NamePattern], Field(max_length=_MOST)] = Field(
        default_factory=list,
        description="Names of files and directories that are not, besides locks and temporary files.",
    )
    facts: list[DerivedFact] = Field(
        default_factory=lambda: list(_GPU), description="What must be the same besides the image and the declared name."
    )
    max_size: Size = _default("1GiB", "Bytes of one file or directory; a larger one is refused.")
    only_successful: bool = Field(
        default=True,
        description="Keep only what jobs leave that ended well: nothing tells half a file from a whole one.",
    )


class Publish(Section):
    """Who may publish above the user scope."""

    users: Annotated[list[Account], Field(min_length=1)] = Field(
        description="User names, no patterns; each must exist on the node. "
        "Never an account that runs code which nobody has reviewed."
    )


class Rendezvous(Section):
    """One address and port for all nodes of a job; docs/rendezvous.md has what it promises."""

    ports: Ports = Field(
        description="FIRST-LAST: the head node's TCP ports to reserve from; outside of its ip_local_port_range."
    )
    per_job: int = Field(default=8, ge=0, le=64, description="Ports that a job may ask for besides MASTER_PORT.")
    per_user: int = Field(default=64, ge=1, description="Ports of one head node that one user's jobs may hold.")
    shared_nodes: bool = Field(
        default=False,
        description="Also where the job does not have the head node for itself, though a neighbour can take "
        "the port before the job binds it.",
    )
    wait: Duration = _default("20s", "How long the other nodes wait for the head node's answer.")
    required: bool = Field(
        default=False, description="A job that can't have it fails with a reason, and else runs without."
    )


class Rule(Section):
    """What some jobs get. Rules apply in order; later ones add to earlier ones."""

    name: Label = Field(description="Shown by `warmstart plan` and in the audit; unique.")
    match: Match = Field(default_factory=Match, description="Which jobs the rule is for; without it, every job.")
    images: list[Reference] = Field(default_factory=list, description="Images that are ready before the job starts.")
    profiles: list[str] = Field(default_factory=list, description="Tools whose caches are seeded and harvested.")
    scope: Scope | None = Field(
        default=None,
        description="The widest scope the job is seeded from. Of the matching rules the last that has one holds; "
        "`user` if none has. Above `user`: verified attributes only.",
    )
    publish: Publish | None = Field(
        default=None,
        description="Who may publish into this rule's scope. Needs `scope` and `match.partition` in the same rule.",
    )
    env: dict[Variable, Value] = Field(
        default_factory=dict,
        description="Environment variables for the job; a later rule's value replaces an earlier one's.",
    )
    override: list[Variable] = Field(
        default_factory=list,
        description="Variables that users can't set themselves in these jobs: the value that warmstart sets holds.",
    )
    rendezvous: Rendezvous | None = Field(
        default=None,
        description="MASTER_ADDR and MASTER_PORT for jobs of several nodes, and for those that ask for ports. "
        "A later rule's replaces an earlier one's. Verified attributes only.",
    )


class PolicyModel(Section):
    """The whole policy: policy.yaml with the rules of conf.d/*.yaml behind its own."""

    version: Literal[1] = Field(description="Version of this format.")
    paths: Paths = Field(description="Where things are.")
    store_user: Account = Field(
        default="warmstart",
        description="Owner of the store: all store I/O has this uid, the same on every node.",
    )
    import_user: Account = Field(default="warmstart-import", description="Shared imports run as this account.")
    validate_user: Account = Field(
        default="warmstart-validate", description="What jobs wrote is parsed as this account only."
    )
    site_label: Label = Field(
        default="bare",
        description="Names the software that jobs without an image run on; change it with the node's "
        "system image, and caches start anew.",
    )
    constant_path: Literal["none", "spank", "namespace", "link", "enroot"] = Field(
        default="none",
        description="What brings a job's cache to paths.cache on this node: `spank`, the plugin of packaging/spank; "
        "`namespace`, a mount in the job's own mount namespace, by Slurm's CloneNSScript (24.11); `link`, a link in a "
        "directory that job_container gives to each job; `enroot`, its hook alone, for sites whose jobs are "
        "containers; `none`: bare jobs have it at a path of their own, and profiles that need a constant one are left "
        "out.",
    )
    images: Images = Field(default_factory=Images, description="Which images, and how.")
    seed: Seed = Field(default_factory=Seed, description="Bounds of a prolog's fetching.")
    harvest: Harvest = Field(default_factory=Harvest, description="Bounds of an epilog's harvest.")
    maintenance: Maintenance = Field(
        default_factory=Maintenance, description="Which bundles maintenance leaves in the store."
    )
    limits: Limits = Field(default_factory=Limits, description="Bounds on who is served.")
    trust: Trust = Field(default_factory=Trust, description="What slurmctld makes sure of.")
    slurmctld: Slurmctld = Field(default_factory=Slurmctld, description="The hooks on the controller.")
    on_error: OnError = Field(default_factory=OnError, description="What a failure does to the job.")
    profiles: dict[Profile, DefinedProfile] = Field(
        default_factory=dict, description="Profiles of the site's own, by name; rules turn them on."
    )
    files: Files = Field(default_factory=Files, description="Files that jobs declare: the profile `files`.")
    rules: list[Rule] = Field(default_factory=list, description="What jobs get, in order.")


def check_shape(data: object) -> PolicyModel | list[Fault]:
    """Return the model of plain YAML data, or every fault of its keys, types and values."""
    try:
        return PolicyModel.model_validate(data)
    except ValidationError as error:
        return [fault(item, known_keys) for item in error.errors(include_url=False)]


def known_keys(loc: Loc) -> list[str]:
    """Return the keys that the mapping at `loc` may have."""
    section: type[Section] = PolicyModel
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


def schema_text() -> str:
    """Return policies/schema.json: the JSON Schema of policy.yaml, for editors."""
    schema = PolicyModel.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "warmstart policy"
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    sys.stdout.write(schema_text())
