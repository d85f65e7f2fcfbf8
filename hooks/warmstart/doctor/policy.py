"""Checks of the policy: the site's files are in force, and only root can change them (docs/threats.md, row 19)."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

from warmstart.doctor.finding import ADVICE, AS_ROOT, CRITICAL, OK, UNKNOWN, WRONG, Finding, on_one_line
from warmstart.errors import PolicyError
from warmstart.host.files import ROOT_ALONE
from warmstart.paths import Installation
from warmstart.policy import compiled, source, trust
from warmstart.policy.current import current_policy
from warmstart.policy.invalid import PolicyUntrusted
from warmstart.policy.match import OBSERVE
from warmstart.policy.units import format_duration


def current(installation: Installation) -> Iterator[Finding]:
    """Check for a broken edit: it leaves the last good policy in force, with rights that the edit meant to withdraw."""
    try:
        in_force = current_policy(installation)
    except PolicyError as error:
        yield Finding(CRITICAL, f"no policy is in force: {on_one_line(error)}", error.hint)
        return
    if in_force.problem:
        yield Finding(
            CRITICAL,
            f"the last good policy is in force ({in_force.origin}); the files were changed and are rejected: "
            f"{on_one_line(in_force.problem)}",
            "fix what `warmstart policy check` reports",
        )
    elif not in_force.policy.rules:
        change = "add rules (docs/reference/policy.md)"
        yield Finding(WRONG, f"{in_force.origin} has no rules: no job gets anything", change)
    elif in_force.changed:
        yield Finding(OK, "the files were changed; the next hook puts them into force")
    else:
        yield Finding(OK, f"in force from {in_force.origin}")


def files(installation: Installation) -> Iterator[Finding]:
    """Check who can write the policy, its conf.d and the directories above: they could become root on this node."""
    try:
        texts = source.read(installation.policy, ROOT_ALONE)
    except PolicyUntrusted as error:
        yield Finding(CRITICAL, str(error), error.hint)
        return
    except PolicyError as error:
        yield Finding(UNKNOWN, str(error), error.hint if os.geteuid() == 0 else AS_ROOT)
        return
    yield Finding(OK, f"only root can change {', '.join(path for path, _ in texts)}")


def compiled_form(installation: Installation) -> Iterator[Finding]:
    """Check the compiled form that hooks read. If they cannot trust it, every job costs a compilation."""
    path = installation.compiled_policy
    if not os.path.lexists(path):
        found = f"{path} does not exist"
        if installation.nodes():
            yield Finding(ADVICE, found, "the next hook writes it; if not, check the directory's owner and mode")
        else:
            yield Finding(OK, f"{found} yet: no hook has run here")
    elif not os.access(path, os.R_OK):
        yield Finding(UNKNOWN, f"{path}: you cannot read it", AS_ROOT)
    elif compiled.read(path) is None:
        change = "remove it; the next hook compiles it again"
        yield Finding(WRONG, f"{path} is damaged, of another version, or others than root can change it", change)
    else:
        yield Finding(OK, f"{path} is intact")


def switch(installation: Installation) -> Iterator[Finding]:
    """Check for the file `off`, which is easily forgotten."""
    if installation.is_off:
        age = time.time() - os.stat(installation.off_switch).st_mtime
        found = f"{installation.off_switch} has existed for {format_duration(age)}: hooks do nothing"
        yield Finding(WRONG, found, f"when the reason is gone: rm {installation.off_switch}")
    else:
        yield Finding(OK, "hooks are enabled")


def enforcement(installation: Installation) -> Iterator[Finding]:
    """Check that Slurm enforces what the policy declares enforced: rights rest on it (docs/threats.md, row 36)."""
    policy = current_policy(installation).policy
    if problem := trust.problem(policy, installation.enforcement):
        yield Finding(CRITICAL, str(problem), problem.hint)
    elif trust.is_declared(policy):
        yield Finding(OK, "Slurm enforces accounts")
    else:
        yield Finding(OK, "the policy relies on nothing that users write")


def mode(installation: Installation) -> Iterator[Finding]:
    """Check for jobs that are only observed, which is easily forgotten."""
    policy = current_policy(installation).policy
    rules = [rule.name for rule in policy.rules if rule.mode == OBSERVE]
    page = "docs/operations/rollout.md"
    if policy.mode == OBSERVE:
        yield Finding(ADVICE, "mode: observe: hooks touch nothing, but where a rule enforces", page)
    elif rules:
        yield Finding(ADVICE, f"jobs of these rules are only observed: {', '.join(rules)}", page)
    else:
        yield Finding(OK, "no job is only observed")


CHECKS = {
    "policy.in-force": current,
    "policy.files": files,
    "policy.compiled": compiled_form,
    "policy.off": switch,
    "policy.mode": mode,
    "policy.trust": enforcement,
}
