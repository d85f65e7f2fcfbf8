"""What is probably a mistake in a policy that hooks accept. For `warmstart policy check`.

A rule that matches nothing is no error for a hook: a partition may come later. What a name stands for is looked up in
what `Known` says of this site; what it does not say is not judged.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from warmstart.policy.document import Fault, nearest
from warmstart.policy.schema import Match, PolicyModel, Rule
from warmstart.slurm import nodes

# What a name of Slurm or of the system does not hold, and a regular expression often does.
_REGEX = re.compile(r"\.\*|\.\+|[\^$|()\\]|\[\^")
_MOST_NAMED = 20  # names that a hint lists
_EXPANDED = re.compile(r"\$[A-Za-z_{]")  # what a shell would put a variable for
DAY_S = 86_400
OF_EVERY_PROGRAM = frozenset({"PATH", "LD_PRELOAD", "LD_AUDIT"})


class Known(NamedTuple):
    """Names of this site, and whether a name is known; None if that could not be found out."""

    partitions: frozenset[str] | None = None
    nodes: frozenset[str] | None = None
    is_user: Callable[[str], bool] | None = None
    is_group: Callable[[str], bool] | None = None
    has_accounts: bool | None = None  # whether slurmctld keeps accounts and QOS


def warnings(model: PolicyModel, known: Known) -> Iterator[Fault]:
    """Yield probable mistakes of a policy without faults."""
    if not model.rules:
        yield Fault(("rules",), "no rules: no job gets anything of warmstart", at_key=True)
    yield from _sizes(model)
    yield from _unused(model)
    for number, rule in enumerate(model.rules):
        for fault in (*_patterns(rule.match), *_unknown(rule.match, known), *_unkept(rule.match, known)):
            yield fault._replace(loc=("rules", number, *fault.loc))
        yield from _revoked(model, number)
        yield from _without_a_path(model, number)
        yield from _experimental(rule, number)
        yield from _moved_away(model, number)
        yield from _too_wide(model, number)
        yield from _set_elsewhere(model, number)
        for name, value in rule.env.items():
            if _EXPANDED.search(value):
                problem = f"{name} is set to {value!a} as it is: no shell expands $ there"
                yield Fault(("rules", number, "env", name), problem)


def _too_wide(model: PolicyModel, number: int) -> Iterator[Fault]:
    """Yield an empty match, which is every job's, and a scope that no rule publishes into."""
    rule = model.rules[number]
    if "match" in rule.model_fields_set and not _conditions(rule.match):
        yield Fault(("rules", number, "match"), "match is empty: the rule is for every job; leave it out to say so")
    publishes = any(other.publish is not None and other.scope == rule.scope for other in model.rules)
    if rule.scope in ("account", "site") and not publishes:
        problem = f"no rule publishes into scope {rule.scope}: only what `warmstart cache promote` put there is found"
        yield Fault(("rules", number, "scope"), problem)


def _set_elsewhere(model: PolicyModel, number: int) -> Iterator[Fault]:
    """Yield variables that every program looks at, and those by which a profile's tool finds its cache."""
    from warmstart.profiles import registry

    given = sorted({name for rule in model.rules for name in rule.profiles})
    whose = {
        variable: name for name in given for variable in (model.profiles.get(name) or registry.get(name)).variables
    }
    for variable in model.rules[number].env:
        loc = ("rules", number, "env", variable)
        if variable in OF_EVERY_PROGRAM:
            problem = f"{variable} is every program's: the user's own wins, or is lost with override"
            yield Fault(loc, f"{problem}, and in a container the path may lead nowhere")
        elif variable in whose:
            problem = (
                f"{variable} is where the tool of profile {whose[variable]} finds its cache: with this value the job"
            )
            yield Fault(loc, f"{problem} is cold, and is told that it is warm; leave it out, or the profile")


def _unkept(match: Match, known: Known) -> Iterator[Fault]:
    """Yield conditions on what this cluster does not keep."""
    for attribute in ("account", "qos"):
        if getattr(match, attribute) is not None and known.has_accounts is False:
            problem = (
                f"this cluster keeps no {attribute} (AccountingStorageType is none): a job has what its user writes"
            )
            yield Fault(("match", attribute), problem, at_key=True)


def _sizes(model: PolicyModel) -> Iterator[Fault]:
    """Yield limits that cannot be reached because of another one, and times that undo what another key is for."""
    harvest = model.harvest
    if harvest.while_running is not None and harvest.only_successful:
        problem = "harvest.only_successful waits for the job's end: no job is harvested while it runs"
        yield Fault(("harvest", "while_running"), problem)
    if model.images.keep.lease < DAY_S:
        yield Fault(("images", "keep", "lease"), "an image in use can be evicted: nodes note its use once a day")


def _unused(model: PolicyModel) -> Iterator[Fault]:
    """Yield the site's own profiles that no rule gives, or that are not harvested while jobs run."""
    used = {name for rule in model.rules for name in rule.profiles}
    for name, profile in model.profiles.items():
        if profile.only_successful and model.harvest.while_running is not None:
            problem = f"{name} waits for the job's end, whatever harvest.while_running says"
            yield Fault(("profiles", name, "only_successful"), problem)
        if model.rules and name not in used:
            yield Fault(("profiles", name), f"no rule gives {name}: only jobs that ask for it get it", at_key=True)


def _patterns(match: Match) -> Iterator[Fault]:
    """Yield patterns that look like regular expressions."""
    for attribute, globs in _conditions(match):
        for index, glob in enumerate(globs):
            if _REGEX.search(glob):
                better = re.sub(r"[\^$]", "", re.sub(r"\.[*+]", "*", glob))
                advice = f"; write {better!a}" if not _REGEX.search(better) and "|" not in better else ""
                problem = f"{glob!a} looks like a regular expression; patterns have * only{advice}"
                yield Fault(("match", attribute, index), problem)


def _unknown(match: Match, known: Known) -> Iterator[Fault]:
    """Yield patterns that no name of this site matches. Of users and groups, only plain names can be looked up."""
    lists = {"partition": known.partitions, "node": known.nodes}
    questions = {"user": known.is_user, "group": known.is_group}
    for attribute, globs in _conditions(match):
        names, exists = lists.get(attribute), questions.get(attribute)
        spelt = {glob: nodes.expand(glob) if attribute == "node" else [glob] for glob in globs}
        missing = [glob for glob, patterns in spelt.items() if _is_missing(patterns, names, exists)]
        for glob in missing:
            hint = f"; {nearest(glob, sorted(names))}" if names and len(names) <= _MOST_NAMED else ""
            end = ": the rule can never match" if len(missing) == len(globs) else ""
            yield Fault(("match", attribute, globs.index(glob)), f"no {attribute} {glob!a} on this cluster{hint}{end}")


def _is_missing(patterns: list[str], names: Iterable[str] | None, exists: Callable[[str], bool] | None) -> bool:
    if names is not None:
        known = set(names)
        return not any(one in known or ("*" in one and fnmatch.filter(known, one)) for one in patterns)
    return exists is not None and "*" not in patterns[0] and not exists(patterns[0])


def _without_a_path(model: PolicyModel, number: int) -> Iterator[Fault]:
    """Yield profiles of a rule that no job gets, for want of a constant path."""
    from warmstart.profiles import registry

    for index, name in enumerate(model.rules[number].profiles):
        own = model.profiles.get(name)
        needs = (own or registry.get(name)).relocation == "constant-path"
        follows = own is None and registry.get(name).follows_links
        if needs and (model.constant_path == "none" or (follows and model.constant_path == "link")):
            problem = f"{name} needs a constant path, and constant_path is {model.constant_path}: no job gets it"
            yield Fault(("rules", number, "profiles", index), problem)


def _experimental(rule: Rule, number: int) -> Iterator[Fault]:
    """Yield profiles of a rule that were never run with their tools."""
    from warmstart.profiles import registry

    for index, name in enumerate(rule.profiles):
        profile = registry.shipped(name)
        if profile is not None and profile.experimental:
            problem = f"{name} is experimental: it was never run with its tool; try it with one job, cold and warm"
            yield Fault(("rules", number, "profiles", index), problem)


def _moved_away(model: PolicyModel, number: int) -> Iterator[Fault]:
    """Yield sglang without flashinfer, whose cache it takes along into the job's own, where nothing keeps it."""
    profiles = model.rules[number].profiles
    if "sglang" in profiles and not any(
        "flashinfer" in rule.profiles or "FLASHINFER_WORKSPACE_BASE" in rule.env for rule in model.rules
    ):
        problem = "sglang moves flashinfer's cache into the job's, and nothing keeps it there: "
        problem += "give the profile flashinfer, too, or set FLASHINFER_WORKSPACE_BASE in env"
        yield Fault(("rules", number, "profiles", profiles.index("sglang")), problem)


def _revoked(model: PolicyModel, number: int) -> Iterator[Fault]:
    """Yield a later scope that takes the right to publish from all jobs of a rule: only the last scope counts."""
    rule = model.rules[number]
    if rule.publish is None:
        return
    for later, other in enumerate(model.rules[number + 1 :], number + 1):
        if other.scope not in (None, rule.scope) and _covers(other, rule):
            problem = (
                f"scope {other.scope} revokes the publish of rule {rule.name} for all of its jobs, because the last "
                f"matching rule's scope counts; move rule {other.name} before it, or leave its scope out"
            )
            yield Fault(("rules", later, "scope"), problem)


def _covers(wide: Rule, narrow: Rule) -> bool:
    """Return whether all jobs of `narrow` certainly match `wide`, too."""
    patterns = dict(_conditions(narrow.match))
    return all(
        attribute in patterns and all(any(_fits(glob, other) for other in globs) for glob in patterns[attribute])
        for attribute, globs in _conditions(wide.match)
    )


def _fits(pattern: str, wide: str) -> bool:
    return pattern == wide or ("[" not in wide and fnmatch.fnmatchcase(pattern, wide))


def _conditions(match: Match) -> list[tuple[str, list[str]]]:
    return [(attribute, globs) for attribute, globs in match.model_dump().items() if globs is not None]
