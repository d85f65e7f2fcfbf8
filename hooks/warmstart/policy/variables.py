"""Checks of the rules' `override`: a name that nothing sets would stand there without effect."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from warmstart.policy.explain import Fault, dotted
from warmstart.policy.model import PolicyModel

OURS = ("TMPDIR", "MASTER_ADDR", "MASTER_PORT")  # what jobs find besides WARMSTART_*, `env` and their profiles'


def variable_faults(model: PolicyModel, profiles: Sequence[str]) -> Iterator[Fault]:
    """Yield the names that nothing sets; `profiles` are those that come with warmstart: any job may ask for one."""
    wanted = [
        (("rules", number, "override", place), name)
        for number, rule in enumerate(model.rules)
        for place, name in enumerate(rule.override)
    ]
    known = _known(model, profiles) if wanted else frozenset()
    for loc, name in wanted:
        if name.startswith("WARMSTART_"):
            yield Fault(loc, f"{dotted(loc)}: {name} is never the user's; leave it out")
        elif name not in known:
            yield Fault(loc, f"{dotted(loc)}: nothing sets {name}; put it into env, or correct it")


def _known(model: PolicyModel, profiles: Sequence[str]) -> frozenset[str]:
    from warmstart.profiles import registry  # a module for each profile, and few policies need them

    built_in = (name for profile in profiles for name in registry.get(profile).variables)
    defined = (name for profile in model.profiles.values() for name in profile.variables)
    return frozenset([*OURS, *built_in, *defined, *(name for rule in model.rules for name in rule.env)])
