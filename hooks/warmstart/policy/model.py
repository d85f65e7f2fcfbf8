"""The policy's keys: types, defaults, what each is for. Alone imports pydantic; never on a warm path.

`python -m warmstart.policy.model` prints policies/schema.json. Only keys that something honours
stand here: a key that is accepted and ignored is worse than one that is refused. What concerns
several keys at once is in `checks`.
"""

from __future__ import annotations

import json
import re
import sys
from typing import Annotated, Any, Literal, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WithJsonSchema,
)

from warmstart.policy import units
from warmstart.policy.explain import Fault, Loc, fault

LABEL = r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}"
ACCOUNT = r"[A-Za-z_][A-Za-z0-9_.-]{0,31}"
PATH = r"/[A-Za-z0-9_.@+=%/-]{1,1023}"
# No wider than what images.reference parses: an admin's slip is told here, and not to every job.
_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_PORT = r"(6553[0-5]|655[0-2][0-9]|65[0-4][0-9]{2}|6[0-4][0-9]{3}|[1-5][0-9]{4}|[1-9][0-9]{0,3})"
_HOST = rf"{_LABEL}(\.{_LABEL})*(:{_PORT})?"
_PART = r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*"
REGISTRY = rf"(?=localhost$|.*[.:])(?!(index|registry-1)\.docker\.io$)(?=.{{1,259}}$){_HOST}"
REFERENCE = (
    rf"(?=.{{1,264}}$)docker://({_HOST}/)?{_PART}(/{_PART})*"
    r"(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(@sha256:[0-9a-f]{64})?"
)
VARIABLE = r"[A-Za-z_][A-Za-z0-9_]{0,127}"
# A task prolog's value ends at the newline and is not quoted (Slurm's prolog_epilog.html).
VALUE = r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{0,4096}"
GLOB = r"[^\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]{1,256}"


def _matches(pattern: str, what: str) -> AfterValidator:
    compiled = re.compile(pattern)

    def check(text: str) -> str:
        if not compiled.fullmatch(text):
            raise ValueError(f"{text!a} is not {what}")
        return text

    return AfterValidator(check)


def _in_schema(pattern: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": f"^{pattern}$"})


def _listed(value: object) -> object:
    return [value] if isinstance(value, str) else value


Label = Annotated[str, _matches(LABEL, "a name: letters, digits and _.-, at most 64"), _in_schema(LABEL)]
Account = Annotated[str, _matches(ACCOUNT, "a user name"), _in_schema(ACCOUNT)]
Path = Annotated[str, _matches(PATH, "an absolute path of letters, digits and _.@+=%-/"), _in_schema(PATH)]
Registry = Annotated[
    str,
    _matches(REGISTRY, "a registry: HOST or HOST:PORT in lower case, Docker Hub as docker.io"),
    _in_schema(REGISTRY),
]
Reference = Annotated[
    str,
    _matches(REFERENCE, "an image: docker://REGISTRY/REPOSITORY:TAG"),
    _in_schema(REFERENCE),
]
Variable = Annotated[str, _matches(VARIABLE, "a variable's name"), _in_schema(VARIABLE)]
Value = Annotated[str, _matches(VALUE, "one line of at most 4096 printable characters"), _in_schema(VALUE)]
Glob = Annotated[str, _matches(GLOB, "one line of at most 256 printable characters"), _in_schema(GLOB)]
Globs = Annotated[
    list[Glob],
    BeforeValidator(_listed),
    Field(min_length=1),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}, "minItems": 1}]}),
]
Duration = Annotated[int, BeforeValidator(units.parse_duration), _in_schema(units.DURATION)]
Size = Annotated[int, BeforeValidator(units.parse_size), _in_schema(units.SIZE)]
Percent = Annotated[int, BeforeValidator(units.parse_percent), _in_schema(units.PERCENT)]
Ports = Annotated[tuple[int, int], BeforeValidator(units.parse_ports), _in_schema(units.PORTS)]
Scope = Literal["user", "account", "site"]


class Section(BaseModel):
    """What every mapping of the policy has in common: unknown keys and wrong types are refused."""

    # validate_default: defaults stand in the schema as an admin writes them ("4m").
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, validate_default=True)


def _default(written: str, description: str) -> Any:  # noqa: ANN401 - text here, a number after validation
    return Field(default=written, description=description)


class Paths(Section):
    """Where things are."""

    workspace: Path = Field(
        default="/var/tmp/warmstart",
        description="Node-local disk for the jobs' workspaces; its parents must be root's.",
    )
    store: Path = Field(
        description="Directory on the shared filesystem that holds images and artifacts; store_user owns it."
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
        description="Gives a node that must drain a reason that people understand; "
        "on the controller it is asked for a job's QOS.",
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
    keep: Size = _default("20GiB", "Copies of bundles that upkeep leaves on the node, the last used.")


class Harvest(Section):
    """Bounds on what the epilog takes out of a job's cache."""

    budget: Duration = _default("30s", "How long an epilog may hold the node for the harvest.")
    max_size: Size = _default("5GiB", "Bytes harvested from one job.")
    max_entries: int = Field(default=50_000, ge=1, description="Entries harvested from one job.")
    spool: Size = _default("5GiB", "What the store does not take is kept on the node, up to this much.")


class Tend(Section):
    """What upkeep leaves in the store's artifacts."""

    keep: Duration = _default("90d", "A bundle that no node has used for so long is removed.")
    per_user: Size = _default("50GiB", "Bundles in one user's scope; those unused for longest go first.")
    per_account: Size = _default("500GiB", "Bundles in one account's scope.")
    per_site: Size = _default("2TiB", "Bundles in the site's scope.")


class Limits(Section):
    """Bounds on who is served."""

    min_uid: int = Field(default=1000, ge=1, description="Jobs of a lower uid get nothing and give nothing.")


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

    store: Literal["degrade", "verdict"] = Field(
        default="degrade",
        description="The shared store is unwell: the job runs cold (`degrade`), or fails with a reason.",
    )
    image: Literal["verdict", "best-effort"] = Field(
        default="verdict",
        description="The image cannot be had: the job fails with a reason, or runs without WARMSTART_IMAGE.",
    )
    bug: Literal["allow", "refuse"] = Field(
        default="allow",
        description="A bug in warmstart: the job runs with nothing from warmstart, or fails with a reason.",
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
    constant_path: Literal["none", "spank"] = Field(
        default="none",
        description="What brings a bare job's cache to paths.cache on this node: `spank`, the plugin of "
        "packaging/spank; `none`: jobs have it at a path of their own, and profiles that need a constant one "
        "are left out.",
    )
    images: Images = Field(default_factory=Images, description="Which images, and how.")
    seed: Seed = Field(default_factory=Seed, description="Bounds of a prolog's fetching.")
    harvest: Harvest = Field(default_factory=Harvest, description="Bounds of an epilog's harvest.")
    tend: Tend = Field(default_factory=Tend, description="What upkeep leaves in the store's artifacts.")
    limits: Limits = Field(default_factory=Limits, description="Bounds on who is served.")
    trust: Trust = Field(default_factory=Trust, description="What slurmctld makes sure of.")
    slurmctld: Slurmctld = Field(default_factory=Slurmctld, description="The hooks on the controller.")
    on_error: OnError = Field(default_factory=OnError, description="What a failure does to the job.")
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
    for part in loc:
        if isinstance(part, str):
            section = _section_in(section.model_fields[part].annotation)
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
