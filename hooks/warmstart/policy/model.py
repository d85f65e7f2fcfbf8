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
    scontrol: Path = Field(
        default="/usr/bin/scontrol",
        description="Used only to give a node that must drain a reason that people understand.",
    )


class Images(Section):
    """Which images may be imported, and how."""

    importer: Literal["auto", "oci"] = Field(
        default="auto",
        description="What imports images: `oci` (skopeo, umoci, mksquashfs); `auto`: the first that is there.",
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


class Seed(Section):
    """Bounds on what the prolog brings into a job's cache."""

    fetch_budget: Duration = _default("10s", "Time for fetching bundles to the node, per job.")
    max_fetch: Size = _default("1GiB", "Bytes of bundles fetched to the node, per job.")


class Harvest(Section):
    """Bounds on what the epilog takes out of a job's cache."""

    budget: Duration = _default("30s", "How long an epilog may hold the node for the harvest.")
    max_size: Size = _default("5GiB", "Bytes harvested from one job.")
    max_entries: int = Field(default=50_000, ge=1, description="Entries harvested from one job.")


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


class Publish(Section):
    """Who may publish above the user scope."""

    users: Annotated[list[Account], Field(min_length=1)] = Field(
        description="User names, no patterns; each must exist on the node. "
        "Never an account that runs code which nobody has reviewed."
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
    images: Images = Field(default_factory=Images, description="Which images, and how.")
    seed: Seed = Field(default_factory=Seed, description="Bounds of a prolog's fetching.")
    harvest: Harvest = Field(default_factory=Harvest, description="Bounds of an epilog's harvest.")
    limits: Limits = Field(default_factory=Limits, description="Bounds on who is served.")
    trust: Trust = Field(default_factory=Trust, description="What slurmctld makes sure of.")
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
