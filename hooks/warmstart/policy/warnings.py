"""What is probably a mistake in a policy that hooks accept. For `warmstart policy check`.

A rule that matches nothing is no error for a hook: a partition may come later. What a name stands for is looked up in
what `Known` says of this site; what it does not say is not judged.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from warmstart.policy.document import Fault, nearest
from warmstart.policy.keys import Policy, Rule
from warmstart.profiles import registry
from warmstart.slurm import nodes

# What a name of Slurm or of the system does not hold, and a regular expression often does.
_REGEX = re.compile(r"\.\*|\.\+|[\^$|()\\]|\[\^")
_MOST_NAMED = 20  # names that a hint lists
DAY_S = 86_400
Match = dict[str, list[str]]  # as it is written
OF_EVERY_PROGRAM = frozenset({"PATH", "LD_PRELOAD", "LD_AUDIT"})


class Known(NamedTuple):
    """Names of this site, and whether a name is known; None if that could not be found out."""

    partitions: frozenset[str] | None = None
    nodes: frozenset[str] | None = None
    is_user: Callable[[str], bool] | None = None
    is_group: Callable[[str], bool] | None = None
    has_accounts: bool | None = None  # whether slurmctld keeps accounts and QOS


def warnings(policy: Policy, data: Any, known: Known) -> Iterator[Fault]:  # noqa: ANN401 - plain data
    """Yield probable mistakes of a policy without faults; `data` is what was written."""
    if not policy.rules:
        yield Fault(("rules",), "no rules: no job gets anything of warmstart", at_key=True)
    yield from _times(policy)
    yield from _unused(policy)
    matches = [_written(rule.get("match", {})) for rule in data.get("rules", [])]
    for number, (rule, match) in enumerate(zip(policy.rules, matches, strict=True)):
        if "match" in data["rules"][number] and not match:
            problem = "match is empty: the rule is for every job; leave it out to say so"
            yield Fault(("rules", number, "match"), problem)
        for fault in (
            *_patterns(match),
            *_unknown(match, known),
            *_unkept(match, known),
            *_unpublished(policy, rule),
            *_profiles(policy, rule),
            *_set_elsewhere(policy, rule),
        ):
            yield fault._replace(loc=("rules", number, *fault.loc))
        yield from _revoked(policy, number, matches)


def _written(match: Any) -> Match:  # noqa: ANN401 - plain data
    given = {key: [globs] if isinstance(globs, str) else globs for key, globs in match.items()}
    return {key: globs for key, globs in given.items() if globs is not None}


def _unpublished(policy: Policy, rule: Rule) -> Iterator[Fault]:
    """Yield a scope that no rule publishes into."""
    publishes = any(other.publish is not None and other.scope == rule.scope for other in policy.rules)
    if rule.scope in ("account", "site") and not publishes:
        problem = f"no rule publishes into scope {rule.scope}: only what `warmstart cache promote` put there is found"
        yield Fault(("scope",), problem)


def _set_elsewhere(policy: Policy, rule: Rule) -> Iterator[Fault]:
    """Yield variables that every program looks at, and those by which a profile's tool finds its cache."""
    given = sorted({name for other in policy.rules for name in other.profiles})
    whose = {variable: name for name in given for variable in registry.get(name, policy.profiles).variables}
    for variable in rule.env:
        loc = ("env", variable)
        if variable in OF_EVERY_PROGRAM:
            problem = f"{variable} is every program's: the user's own wins, or is lost with override"
            yield Fault(loc, f"{problem}, and in a container the path may lead nowhere")
        elif variable in whose:
            problem = f"{variable} is where the tool of profile {whose[variable]} finds its cache"
            yield Fault(loc, f"{problem}: the job is cold, and is told that it is warm; leave it out, or the profile")


def _unkept(match: Match, known: Known) -> Iterator[Fault]:
    """Yield conditions on what this cluster does not keep."""
    for attribute in ("account", "qos"):
        if attribute in match and known.has_accounts is False:
            problem = f"this cluster keeps no {attribute} (AccountingStorageType is none): a job has what is written"
            yield Fault(("match", attribute), problem, at_key=True)


def _times(policy: Policy) -> Iterator[Fault]:
    """Yield times that undo what another key is for."""
    if policy.harvest.while_running is not None and policy.harvest.only_successful:
        problem = "harvest.only_successful waits for the job's end: no job is harvested while it runs"
        yield Fault(("harvest", "while_running"), problem)
    if policy.images.keep.lease < DAY_S:
        yield Fault(("images", "keep", "lease"), "an image in use can be evicted: nodes note its use once a day")


def _unused(policy: Policy) -> Iterator[Fault]:
    """Yield the site's own profiles that no rule gives, or that are not harvested while jobs run."""
    used = {name for rule in policy.rules for name in rule.profiles}
    for profile in policy.profiles:
        name = profile.name
        if profile.only_successful and policy.harvest.while_running is not None:
            problem = f"{name} waits for the job's end, whatever harvest.while_running says"
            yield Fault(("profiles", name, "only_successful"), problem)
        if policy.rules and name not in used:
            yield Fault(("profiles", name), f"no rule gives {name}: only jobs that ask for it get it", at_key=True)


def _patterns(match: Match) -> Iterator[Fault]:
    """Yield patterns that look like regular expressions."""
    for attribute, globs in match.items():
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
    for attribute, globs in match.items():
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


def _profiles(policy: Policy, rule: Rule) -> Iterator[Fault]:
    """Yield profiles that no job gets, for want of a constant path, and those that were never run with their tools."""
    for index, name in enumerate(rule.profiles):
        profile = registry.get(name, policy.profiles)
        has_no_path = policy.constant_path == "none" or (profile.follows_links and policy.constant_path == "link")
        if profile.relocation == "constant-path" and has_no_path:
            problem = f"{name} needs a constant path, and constant_path is {policy.constant_path}: no job gets it"
            yield Fault(("profiles", index), problem)
        if profile.experimental:
            problem = f"{name} is experimental: it was never run with its tool; try it with one job, cold and warm"
            yield Fault(("profiles", index), problem)


def _revoked(policy: Policy, number: int, matches: Sequence[Match]) -> Iterator[Fault]:
    """Yield a later scope that takes the right to publish from all jobs of a rule: only the last scope counts."""
    rule = policy.rules[number]
    if rule.publish is None:
        return
    for later, other in enumerate(policy.rules[number + 1 :], number + 1):
        if other.scope not in (None, rule.scope) and _covers(matches[later], matches[number]):
            problem = (
                f"scope {other.scope} revokes the publish of rule {rule.name} for all of its jobs, because the last "
                f"matching rule's scope counts; move rule {other.name} before it, or leave its scope out"
            )
            yield Fault(("rules", later, "scope"), problem)


def _covers(wide: Match, narrow: Match) -> bool:
    """Return whether all jobs of `narrow` certainly match `wide`, too."""
    return all(
        attribute in narrow and all(any(_fits(glob, other) for other in globs) for glob in narrow[attribute])
        for attribute, globs in wide.items()
    )


def _fits(pattern: str, wide: str) -> bool:
    return pattern == wide or ("[" not in wide and fnmatch.fnmatchcase(pattern, wide))  # of a host list
