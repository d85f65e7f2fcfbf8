"""The policy's keys: types, defaults, what each is for. Alone imports pydantic; never on a warm path.

`python -m warmstart.policy.model` prints policies/schema.json. Only keys that something honours
stand here: a key that is accepted and ignored is worse than one that is refused. What concerns
several keys at once is in `policy.checks`.
"""

from __future__ import annotations

import json
from typing import Any, Literal, get_args, get_origin

from pydantic import Field, ValidationError

from warmstart.policy.explain import Fault, Loc, fault
from warmstart.policy.model.images import Credentials, Images
from warmstart.policy.model.match import Match
from warmstart.policy.model.profiles import DefinedProfile, Files
from warmstart.policy.model.rules import Rendezvous, Rule
from warmstart.policy.model.scalars import REFERENCE, REGISTRY, Account, Label, Profile, Section
from warmstart.policy.model.sections import Harvest, Limits, Maintenance, OnError, Paths, Seed, Slurmctld, Trust

__all__ = [
    "REFERENCE",
    "REGISTRY",
    "Credentials",
    "DefinedProfile",
    "Images",
    "Match",
    "PolicyModel",
    "Rendezvous",
    "Rule",
    "Section",
    "check_shape",
    "known_keys",
    "schema_text",
]


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
