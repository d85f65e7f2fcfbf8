"""Profiles that the policy defines: what is wrong with them, and the form that hooks have of them.

`files`, which every policy has, is one of them: its entries are files of the job's own choice.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from warmstart.policy.explain import Fault, dotted
from warmstart.policy.model import DefinedProfile, PolicyModel
from warmstart.profiles import defined
from warmstart.profiles.contract import Fact
from warmstart.profiles.defined import FILES

VARIABLE = "WARMSTART_FILES"


def profile_faults(model: PolicyModel, shipped: Sequence[str]) -> Iterator[Fault]:
    """Yield what is wrong with the site's profiles; `shipped` are the names of those that come with warmstart."""
    for name, profile in model.profiles.items():
        loc = ("profiles", name)
        if name in shipped or name == FILES:
            yield Fault(loc, f"{dotted(loc)}: comes with warmstart; choose another name", at_key=True)
        yield from _variables(name, profile)


def _variables(name: str, profile: DefinedProfile) -> Iterator[Fault]:
    loc = ("profiles", name, "variables")
    for variable in profile.variables:
        if variable.startswith(("WARMSTART_", "SLURM_")):
            problem = f"{dotted((*loc, variable))}: belongs to warmstart or Slurm; a policy may not set it"
            yield Fault((*loc, variable), problem, at_key=True)
    if not any("{dir}" in value for value in profile.variables.values()):
        yield Fault(loc, f"{dotted(loc)}: none has {{dir}}, so the tool would not find its cache", at_key=True)


def compiled(model: PolicyModel) -> list[defined.DefinedProfile]:
    """Return the definitions in the form that hooks have of them."""
    made = [
        defined.DefinedProfile(
            name=name,
            variables=profile.variables,
            relocation=profile.relocation,
            facts=_facts("image", *profile.facts),
            entries=profile.entries,
            never=profile.never,
            needs=profile.needs,
            formats=dict(profile.formats),
            max_size=profile.max_size,
            after_success=profile.only_successful,
        )
        for name, profile in model.profiles.items()
    ]
    return [*made, _files(model)]


def _files(model: PolicyModel) -> defined.DefinedProfile:
    return defined.DefinedProfile(
        name=FILES,
        variables={VARIABLE: "{dir}"},
        relocation="relocatable",
        facts=_facts("image", "declared", *model.files.facts),
        entries=model.files.include,
        never=model.files.never,
        needs=[],
        formats={"*": "written"},
        max_size=model.files.max_size,
        after_success=model.files.only_successful,
        sidecars=True,
    )


def _facts(*names: Fact) -> list[Fact]:
    return list(dict.fromkeys(names))
