"""What is probably a mistake in a policy that hooks accept. For `warmstart policy check`.

A rule that matches nothing is no error for a hook: a partition may come later. What a name stands for is looked up in
what `Known` says of this site; what it does not say is not judged.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from warmstart.policy.document import Fault, nearest
from warmstart.policy.keys import Policy, Rule
from warmstart.profiles import registry
from warmstart.slurm import nodes

# What a name of Slurm or of the system does not hold, and a regular expression often does.
_REGEX = re.compile(r"\.\*|\.\+|[\^$|()\\]|\[\^")
_MOST_NAMED = 20  # names that a hint lists
Match = dict[str, list[str]]  # as it is written


class Known(NamedTuple):
    """Names of this site, by the attribute of a match; without those that could not be found out."""

    names: dict[str, frozenset[str]] = {}  # noqa: RUF012 - of partitions and nodes: all of them
    exists: dict[str, Callable[[str], bool]] = {}  # noqa: RUF012 - of users and groups


def warnings(policy: Policy, data: Any, known: Known) -> Iterator[Fault]:  # noqa: ANN401 - plain data
    """Yield probable mistakes of a policy without faults; `data` is what was written."""
    matches = [_written(rule.get("match", {})) for rule in data.get("rules", [])]
    for number, (rule, match) in enumerate(zip(policy.rules, matches, strict=True)):
        for fault in (
            *_patterns(match),
            *_unknown(match, known),
            *_useless(policy, rule),
            *_revoking(policy, number, matches),
        ):
            yield fault._replace(loc=("rules", number, *fault.loc))


def _written(match: Any) -> Match:  # noqa: ANN401 - plain data
    given = {key: [globs] if isinstance(globs, str) else globs for key, globs in match.items()}
    return {key: globs for key, globs in given.items() if globs is not None}


def _patterns(match: Match) -> Iterator[Fault]:
    """Yield patterns that look like regular expressions."""
    for attribute, globs in match.items():
        for index, glob in enumerate(globs):
            if _REGEX.search(glob):
                better = re.sub(r"[\^$]", "", re.sub(r"\.[*+]", "*", glob))
                advice = f"; write {better!a}" if not _REGEX.search(better) else ""
                problem = f"{glob!a} looks like a regular expression; patterns have * only{advice}"
                yield Fault(("match", attribute, index), problem)


def _unknown(match: Match, known: Known) -> Iterator[Fault]:
    """Yield patterns that no name of this site matches."""
    for attribute, globs in match.items():
        spelt = [nodes.expand(glob) if attribute == "node" else [glob] for glob in globs]
        missing = [index for index, patterns in enumerate(spelt) if not _is_known(attribute, patterns, known)]
        for index in missing:
            names = sorted(known.names.get(attribute, ()))
            hint = f"; {nearest(globs[index], names)}" if 0 < len(names) <= _MOST_NAMED else ""
            end = ": the rule can never match" if len(missing) == len(globs) else ""
            yield Fault(("match", attribute, index), f"no {attribute} {globs[index]!a} on this cluster{hint}{end}")


def _is_known(attribute: str, patterns: list[str], known: Known) -> bool:
    if exists := known.exists.get(attribute):  # only plain names can be looked up
        return any("*" in one or exists(one) for one in patterns)
    names = known.names.get(attribute)
    return names is None or any(one in names or ("*" in one and fnmatch.filter(names, one)) for one in patterns)


def _useless(policy: Policy, rule: Rule) -> Iterator[Fault]:
    """Yield what gives no job anything: a scope without publishers, profiles without their path or their variables."""
    publishes = any(other.publish is not None and other.scope == rule.scope for other in policy.rules)
    if rule.scope in ("account", "site") and not publishes:
        problem = f"no rule publishes into scope {rule.scope}: only what `warmstart cache promote` put there is found"
        yield Fault(("scope",), problem)
    for index, name in enumerate(rule.profiles):
        profile = registry.get(name, policy.profiles)
        has_no_path = policy.constant_path == "none" or (profile.follows_links and policy.constant_path == "link")
        if profile.relocation == "constant-path" and has_no_path:
            problem = f"{name} needs a constant path, and constant_path is {policy.constant_path}: no job gets it"
            yield Fault(("profiles", index), problem)
    given = {name for other in policy.rules for name in other.profiles}
    whose = {variable: name for name in given for variable in registry.get(name, policy.profiles).variables}
    for variable in rule.env.keys() & whose.keys():
        problem = f"{variable} is where the tool of profile {whose[variable]} finds its cache"
        yield Fault(
            ("env", variable), f"{problem}: the job is cold, and is told that it is warm; leave one of them out"
        )


def _revoking(policy: Policy, number: int, matches: Sequence[Match]) -> Iterator[Fault]:
    """Yield a scope that takes the right to publish from all jobs of an earlier rule: only the last scope counts."""
    rule = policy.rules[number]
    for earlier, other in enumerate(policy.rules[:number]):
        if other.publish and rule.scope not in (None, other.scope) and _covers(matches[number], matches[earlier]):
            problem = (
                f"scope {rule.scope} revokes the publish of rule {other.name} for all of its jobs, because the last "
                f"matching rule's scope counts; move rule {rule.name} before it, or leave its scope out"
            )
            yield Fault(("scope",), problem)


def _covers(wide: Match, narrow: Match) -> bool:
    """Return whether all jobs of `narrow` certainly match `wide`, too."""
    return all(
        attribute in narrow and all(any(_fits(glob, other) for other in globs) for glob in narrow[attribute])
        for attribute, globs in wide.items()
    )


def _fits(name: str, pattern: str) -> bool:
    return name == pattern or ("[" not in pattern and fnmatch.fnmatchcase(name, pattern))  # of a host list
