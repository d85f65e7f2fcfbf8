"""Whether Slurm is known to enforce the accounts of jobs, if the policy declares that it does. Hot path.

A declaration alone proves nothing: with AccountingStorageEnforce=none `sbatch -A trusted` is free text
(docs/threats.md, row 36). Maintenance reads slurmctld's running configuration, and remembers it in root's directory,
with the time; hooks never ask. The account is verified only if the last answer has `NEEDED` and is not
older than `LONGEST_S`; otherwise it counts as claimed.
"""

from __future__ import annotations

import os
import time

from warmstart.errors import PolicyError
from warmstart.host import files
from warmstart.host.deadline import after
from warmstart.lean import dumps, suppress
from warmstart.paths import Installation
from warmstart.policy import keys
from warmstart.policy.keys import Policy

NEEDED = "associations"  # in AccountingStorageEnforce (slurm.conf(5)), or any job names any account
LONGEST_S = 86400.0  # maintenance asks every half hour; an unreachable controller costs nothing for a day


class TrustUnproven(PolicyError):
    """The policy declares accounts as enforced, and Slurm is not known to enforce them."""

    code = "trust-unproven"
    template = "trust.account is enforced in the policy, but {problem}; it counts as claimed"
    hint = (
        "set AccountingStorageEnforce in slurm.conf, restart slurmctld and run `warmstart maintain` on the nodes; or "
        "write `claimed`"
    )


def is_declared(policy: Policy) -> bool:
    """Return whether the policy declares accounts as enforced, proven or not."""
    return policy.trust.account == "enforced"


def proven(policy: Policy, path: str) -> Policy:
    """Return the policy with its `doubt`, by what `remember` has written to `path`.

    Costs nothing for a policy that declares nothing.
    """
    return policy._replace(doubt=_doubt(*_known(path))) if is_declared(policy) else policy


def problem(policy: Policy) -> TrustUnproven | None:
    """Return the error of a policy whose accounts are in doubt."""
    return TrustUnproven(problem=policy.doubt) if policy.doubt else None


def judged(policy: Policy, words: list[str] | None) -> Policy:
    """Return the policy with its `doubt`, by what slurmctld says now that it enforces; None without an answer."""
    return policy._replace(doubt=_doubt(time.time(), words)) if is_declared(policy) else policy


def remember(policy: Policy, installation: Installation, slurm_conf: str) -> None:
    """Ask slurmctld what it enforces if the policy needs it, and remember that. Without an answer the last one stays.

    `slurm_conf` is the path for Slurm's commands, "" where they find it. `OSError` if the file cannot be written.
    """
    from warmstart.slurm.facts import Access
    from warmstart.slurm.slurmctld import QUERY_S, LookUpFailed, Slurmctld

    if not is_declared(policy):
        return
    access = Access(policy.paths.scontrol, slurm_conf, installation.slurm_libraries)
    directory, name = os.path.split(installation.enforcement)
    with suppress(LookUpFailed):
        words = Slurmctld(access).enforced(after(QUERY_S))
        with files.opened_dir(directory) as fd:
            files.replace_file(fd, name, dumps({"at": time.time(), "words": words}).encode(), 0o644)


def _known(path: str) -> tuple[float, list[str] | None]:
    """Return when AccountingStorageEnforce was last read, in epoch seconds, and its words; None if it never was."""
    found = keys.read_own_json(path)
    try:
        return float(found["at"]), [str(word) for word in found["words"]]
    except (KeyError, TypeError, ValueError):
        return 0.0, None


def _doubt(at: float, words: list[str] | None) -> str:
    """Return why accounts are in doubt, "" if Slurm enforces them."""
    if words is None:
        return "slurmctld's AccountingStorageEnforce could not be read"
    if not 0 <= time.time() - at < LONGEST_S:
        return f"slurmctld's AccountingStorageEnforce was last read {(time.time() - at) / 3600:.0f} hours ago"
    if NEEDED not in words:
        return f"slurmctld's AccountingStorageEnforce is {','.join(words) or 'none'}, without {NEEDED}"
    return ""
