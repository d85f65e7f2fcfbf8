"""What is probably a mistake in a policy that hooks accept. For `warmstart policy check`.

A rule that matches nothing is no error for a hook: a partition may come later. What a name stands for is looked up in
what `Known` says of this site; what it does not say is not judged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from typing import NamedTuple

from warmstart.policy.document import Fault, nearest
from warmstart.policy.schema import Match, PolicyModel, Rule

# What a name of Slurm or of the system does not hold, and a regular expression often does.
_REGEX = re.compile(r"\.\*|\.\+|[\^$|()\\]|\[\^")
_MOST_NAMED = 20  # names that a hint lists
_WILD = re.compile(r"[*?\[]")


class Known(NamedTuple):
    """Names of this site, and whether a name is known; None if that could not be found out."""

    partitions: frozenset[str] | None = None
    nodes: frozenset[str] | None = None
    is_user: Callable[[str], bool] | None = None
    is_group: Callable[[str], bool] | None = None


def warnings(model: PolicyModel, known: Known) -> Iterator[Fault]:
    """Yield probable mistakes of a policy without faults."""
    if not model.rules:
        yield Fault(("rules",), "no rules: no job gets anything of warmstart", at_key=True)
    for number, rule in enumerate(model.rules):
        for fault in (*_patterns(rule.match), *_unknown(rule.match, known)):
            yield fault._replace(loc=("rules", number, *fault.loc))
        yield from _revoked(model, number)


def _patterns(match: Match) -> Iterator[Fault]:
    """Yield patterns that look like regular expressions."""
    for attribute, globs in _conditions(match):
        for index, glob in enumerate(globs):
            if _REGEX.search(glob):
                better = re.sub(r"[\^$]", "", re.sub(r"\.[*+]", "*", glob))
                advice = f"; write {better!a}" if not _REGEX.search(better) and "|" not in better else ""
                problem = f"{glob!a} looks like a regular expression; patterns have *, ? and [...] only{advice}"
                yield Fault(("match", attribute, index), problem)


def _unknown(match: Match, known: Known) -> Iterator[Fault]:
    """Yield patterns that no name of this site matches. Of users and groups, only plain names can be looked up."""
    lists = {"partition": known.partitions, "node": known.nodes}
    questions = {"user": known.is_user, "group": known.is_group}
    for attribute, globs in _conditions(match):
        names, exists = lists.get(attribute), questions.get(attribute)
        missing = [glob for glob in globs if _is_missing(glob, names, exists)]
        for glob in missing:
            hint = f"; {nearest(glob, sorted(names))}" if names and len(names) <= _MOST_NAMED else ""
            end = ": the rule can never match" if len(missing) == len(globs) else ""
            yield Fault(("match", attribute, globs.index(glob)), f"no {attribute} {glob!a} on this cluster{hint}{end}")


def _is_missing(glob: str, names: Iterable[str] | None, exists: Callable[[str], bool] | None) -> bool:
    if names is not None:
        return not any(fnmatchcase(name, glob) for name in names)
    return exists is not None and not _WILD.search(glob) and not exists(glob)


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
        attribute in patterns and all(any(fnmatchcase(glob, other) for other in globs) for glob in patterns[attribute])
        for attribute, globs in _conditions(wide.match)
    )


def _conditions(match: Match) -> list[tuple[str, list[str]]]:
    return [(attribute, globs) for attribute, globs in match.model_dump().items() if globs is not None]
