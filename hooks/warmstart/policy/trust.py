"""Whether Slurm is known to enforce the accounts of jobs, if the policy declares that it does. Hot path.

A declaration alone proves nothing: with AccountingStorageEnforce=none `sbatch -A trusted` is free text
(docs/threats.md, row 36). Maintenance and a hook that compiles the policy read slurmctld's running configuration and
remember it in root's directory, with the time. The account is verified only if the last answer has `NEEDED` and is not
older than `LONGEST_S`; otherwise it is `unproven`, and counts as claimed.
"""

from __future__ import annotations

import os
import time

from warmstart.errors import PolicyError
from warmstart.host import files, wire
from warmstart.host.deadline import after
from warmstart.lean import NamedTuple, dumps
from warmstart.paths import Installation
from warmstart.policy import compiled
from warmstart.policy.compiled import Policy

ENFORCED, UNPROVEN = "enforced", "unproven"
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


class _Known(NamedTuple):
    """What AccountingStorageEnforce was in the running configuration."""

    at: float  # epoch seconds
    words: list[str]


def is_declared(policy: Policy) -> bool:
    """Return whether the policy declares accounts as enforced, proven or not."""
    return policy.trust.account in (ENFORCED, UNPROVEN)


def is_doubted(policy: Policy) -> bool:
    """Return whether a policy from `proven` declares accounts as enforced, and Slurm is not known to enforce them."""
    return policy.trust.account == UNPROVEN


def proven(policy: Policy, path: str) -> Policy:
    """Return the policy, its `trust.account` `unproven` if it is declared as enforced and not known to be.

    `path` is the file that `remember` writes. Costs nothing for a policy that declares nothing.
    """
    if not is_declared(policy):
        return policy
    known = _known(path)
    enforced = known is not None and _is_recent(known) and NEEDED in known.words
    return policy._replace(trust=policy.trust._replace(account=ENFORCED if enforced else UNPROVEN))


def problem(policy: Policy, path: str) -> TrustUnproven | None:
    """Return the error of a policy from `proven` whose accounts are in doubt."""
    return TrustUnproven(problem=_problem(_known(path))) if is_doubted(policy) else None


def refuted(policy: Policy, words: list[str] | None) -> TrustUnproven | None:
    """Return an error if an answer of slurmctld does not confirm what is declared; `words` is None without one."""
    if not is_declared(policy) or (words is not None and NEEDED in words):
        return None
    return TrustUnproven(problem=_problem(None if words is None else _Known(time.time(), words)))


def remember(policy: Policy, installation: Installation, slurm_conf: str) -> None:
    """Read the running configuration if the policy needs it, and remember it. Without an answer the last one stays.

    `slurm_conf` is the path for Slurm's commands, "" where they find it. `OSError` if the file cannot be written.
    """
    words = enforced(policy, installation, slurm_conf) if is_declared(policy) else None
    if words is not None:
        directory, name = os.path.split(installation.enforcement)
        with files.opened_dir(directory) as fd:
            files.replace_file(fd, name, dumps(_Known(time.time(), words)._asdict()).encode(), 0o644)


def enforced(policy: Policy, installation: Installation, slurm_conf: str) -> list[str] | None:
    """Return AccountingStorageEnforce of the running slurmctld; None without a clear answer."""
    from warmstart.slurm.facts import Access
    from warmstart.slurm.slurmctld import QUERY_S, LookUpFailed, Slurmctld

    access = Access(policy.paths.scontrol, slurm_conf, installation.slurm_libraries)
    try:
        return Slurmctld(access).configuration(after(QUERY_S)).enforced
    except LookUpFailed:
        return None


def _known(path: str) -> _Known | None:
    try:
        return wire.from_object(_Known, compiled.read_own_json(path))
    except wire.WireMismatch:
        return None


def _is_recent(known: _Known) -> bool:
    return 0 <= time.time() - known.at < LONGEST_S


def _problem(known: _Known | None) -> str:
    if known is None:
        return "slurmctld's AccountingStorageEnforce could not be read"
    if not _is_recent(known):
        return f"slurmctld's AccountingStorageEnforce was last read {(time.time() - known.at) / 3600:.0f} hours ago"
    return f"slurmctld's AccountingStorageEnforce is {','.join(known.words) or 'none'}, without {NEEDED}"
