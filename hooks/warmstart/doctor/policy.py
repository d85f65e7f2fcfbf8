"""Checks of the policy: the site's files are in force, hooks are on, and Slurm enforces what rights rest on."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from warmstart.doctor.finding import ADVICE, AS_ROOT, CRITICAL, OK, SKIP, UNKNOWN, WRONG, Finding, check, on_one_line
from warmstart.errors import PolicyError
from warmstart.paths import Installation
from warmstart.policy import keys, trust
from warmstart.policy.current import current_policy
from warmstart.policy.match import OBSERVE
from warmstart.policy.units import format_duration


@check("policy.in-force", critical=True)
def in_force(installation: Installation) -> Iterator[Finding]:
    """Check for a broken edit: it leaves the last good policy in force, with rights that the edit meant to withdraw.

    And check the compiled form that hooks read: if they cannot trust it, every job costs a compilation.
    """
    try:
        current = current_policy(installation)
    except PolicyError as error:
        yield Finding(CRITICAL, f"no policy is in force: {on_one_line(error)}", error.hint)
        return
    if current.problem:
        found = (
            f"the last good policy is in force ({current.origin}); the files were changed and are rejected: "
            f"{on_one_line(current.problem)}"
        )
        yield Finding(CRITICAL, found, "fix what `warmstart policy check` reports")
    elif not current.policy.rules:
        change = "add rules (docs/reference/policy.md)"
        yield Finding(WRONG, f"{current.origin} has no rules: no job gets anything", change)
    elif current.origin == installation.policy:
        yield Finding(OK, "the files were changed; the next hook puts them into force")
    path = installation.compiled_policy
    if not os.path.lexists(path):
        if installation.nodes():  # hooks have run
            change = "the next hook writes it; if not, check the directory's owner and mode"
            yield Finding(ADVICE, f"{path} does not exist", change)
    elif not os.access(path, os.R_OK):
        yield Finding(UNKNOWN, f"{path}: you cannot read it", AS_ROOT)
    elif keys.read(path) is None:
        change = "remove it; the next hook compiles it again"
        yield Finding(WRONG, f"{path} is damaged, of another version, or others than root can change it", change)


@check("policy.mode", critical=True)
def mode(installation: Installation) -> Iterator[Finding]:
    """Check for hooks that do nothing, or touch nothing, which is easily forgotten."""
    if installation.is_off:
        age = time.time() - os.stat(installation.off_switch).st_mtime
        found = f"{installation.off_switch} has existed for {format_duration(age)}: hooks do nothing"
        yield Finding(WRONG, found, f"when the reason is gone: rm {installation.off_switch}")
    policy = current_policy(installation).policy
    rules = [rule.name for rule in policy.rules if rule.mode == OBSERVE]
    page = "docs/operations/rollout.md"
    if policy.mode == OBSERVE:
        yield Finding(ADVICE, "mode: observe: hooks touch nothing, but where a rule enforces", page)
    elif rules:
        yield Finding(ADVICE, f"jobs of these rules are only observed: {', '.join(rules)}", page)


@check("policy.trust", critical=True)
def enforcement(installation: Installation) -> Iterator[Finding]:
    """Check that Slurm enforces what the policy declares enforced: rights rest on it (docs/threats.md, row 36)."""
    policy = current_policy(installation).policy
    if problem := trust.problem(policy):
        yield Finding(CRITICAL, str(problem), problem.hint)
    elif not trust.is_declared(policy):
        yield SKIP


CHECKS = (in_force, mode, enforcement)
