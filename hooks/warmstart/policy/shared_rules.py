"""Faults of directories that share one copy: in a wing's section, and in its key of rules. Never on a warm path."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from warmstart import wing
from warmstart.host import wire
from warmstart.paths import Installation
from warmstart.policy.checks import NEEDS_ENFORCED, NEVER_BELOW, claimed, not_normal, within
from warmstart.policy.document import Fault
from warmstart.policy.keys import Policy, Rule
from warmstart.policy.shared import SharedPath, is_below

_OF_THE_SYSTEM = (
    "/bin", "/boot", "/etc", "/lib", "/lib32", "/lib64", "/root", "/run", "/sbin", "/usr",
    "/var/lib", "/var/run", "/var/spool",
)  # fmt: skip


def prefixes(policy: Policy, section: str, given: Sequence[str]) -> Iterator[Fault]:
    """Yield the `prefixes` of a section that are the system's, or warmstart's: jobs see copies below them."""
    prefix, below, _ = wing.FOLDER.partition("/lib/warmstart/")
    installation = Installation(prefix)
    is_private = below and prefix != "/usr"
    own = (installation.etc, installation.var, installation.lib, installation.libexec) if is_private else ()
    for number, path in enumerate(given):
        loc = (section, "prefixes", number)
        if problem := not_normal(path):
            yield Fault(loc, problem)
        for bad in (*NEVER_BELOW, *_OF_THE_SYSTEM):
            if within(path, bad) or within(bad, path):
                yield Fault(loc, f"may be neither below {bad} nor above it")
        if any(within(path, ours) or within(ours, path) for ours in own):
            yield Fault(loc, f"may be neither in warmstart's own directories nor above one ({prefix})")
        for name in ("store", "workspace", "cache", "audit"):
            ours = getattr(policy.paths, name)
            if within(path, ours) or within(ours, path):
                yield Fault(loc, f"may be neither in paths.{name} nor above it ({ours})")


def in_rule(rule: Rule, policy: Policy, key: str) -> Iterator[Fault]:
    """Yield faults of a rule's `key`: a path below no prefix of the section of that name, a claimed attribute."""
    shared = wire.decode(list[SharedPath], rule.own.get(key, []))
    for number, item in enumerate(shared):
        if problem := not_normal(item.path):
            yield Fault((key, number, "path"), problem)
        if not is_below(item.path, policy.own[key]["prefixes"]):
            yield Fault((key, number, "path"), f"{item.path} is below none of {key}.prefixes")
        if item.scope == "account" and policy.trust.account != "enforced":
            yield Fault((key, number, "scope"), NEEDS_ENFORCED)
    if shared:
        yield from claimed(policy, rule.match, key, "user, group, node or partition")
