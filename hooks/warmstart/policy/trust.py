"""Which attributes that the policy declares `enforced` Slurm is known to enforce. Hot path.

A declaration alone proves nothing: with AccountingStorageEnforce=none `sbatch -A trusted` is free text
(docs/threats.md, row 36). Maintenance and a hook that compiles the policy read slurmctld's running configuration and
remember it in root's directory, with the time. An attribute is verified only if the last answer names it and is not
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
NEEDS = {"account": "associations", "qos": "qos"}  # attribute → word of AccountingStorageEnforce (slurm.conf(5))
LONGEST_S = 86400.0  # maintenance asks every half hour; an unreachable controller costs nothing for a day


class TrustUnproven(PolicyError):
    """The policy declares an attribute as enforced, and Slurm is not known to enforce it."""

    code = "trust-unproven"
    template = "trust.{attribute} is enforced in the policy, but {problem}; it counts as claimed"
    hint = (
        "set AccountingStorageEnforce in slurm.conf, restart slurmctld and run `warmstart maintain` on the nodes; or "
        "write `claimed`"
    )


class _Known(NamedTuple):
    """What AccountingStorageEnforce was in the running configuration."""

    at: float  # epoch seconds
    words: list[str]


def declared(policy: Policy) -> list[str]:
    """Return the attributes that the policy declares as enforced, proven or not."""
    return [name for name in NEEDS if getattr(policy.trust, name) in (ENFORCED, UNPROVEN)]


def unproven(policy: Policy) -> frozenset[str]:
    """Return the attributes of a policy from `proven` that are declared as enforced, and not known to be."""
    return frozenset(name for name in NEEDS if getattr(policy.trust, name) == UNPROVEN)


def proven(policy: Policy, path: str) -> Policy:
    """Return the policy with each attribute `unproven` that is declared as enforced, and is not known to be.

    `path` is the file that `remember` writes. Costs nothing for a policy that declares none.
    """
    names = declared(policy)
    if not names:
        return policy
    known = _known(path)
    current = known.words if known is not None and _is_recent(known) else []
    trust = policy.trust
    for name in names:
        state = ENFORCED if NEEDS[name] in current else UNPROVEN
        trust = trust._replace(account=state) if name == "account" else trust._replace(qos=state)
    return policy._replace(trust=trust)


def problems(policy: Policy, path: str) -> list[TrustUnproven]:
    """Return an error for each attribute that `proven` has found `unproven`."""
    return [TrustUnproven(attribute=name, problem=_problem(name, _known(path))) for name in sorted(unproven(policy))]


def refuted(policy: Policy, words: list[str] | None) -> list[TrustUnproven]:
    """Return an error for each declared attribute that an answer of slurmctld does not confirm; None: no answer."""
    known = None if words is None else _Known(time.time(), words)
    return [
        TrustUnproven(attribute=name, problem=_problem(name, known))
        for name in declared(policy)
        if words is None or NEEDS[name] not in words
    ]


def remember(policy: Policy, installation: Installation, slurm_conf: str) -> None:
    """Read the running configuration if the policy needs it, and remember it. Without an answer the last one stays.

    `slurm_conf` is the path for Slurm's commands, "" where they find it. `OSError` if the file cannot be written.
    """
    words = enforced(policy, installation, slurm_conf) if declared(policy) else None
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


def _problem(name: str, known: _Known | None) -> str:
    if known is None:
        return "slurmctld's AccountingStorageEnforce could not be read"
    if not _is_recent(known):
        return f"slurmctld's AccountingStorageEnforce was last read {(time.time() - known.at) / 3600:.0f} hours ago"
    return f"slurmctld's AccountingStorageEnforce is {','.join(known.words) or 'none'}, without {NEEDS[name]}"
