"""Match rules to a job and combine them into a grant. Hot path; no side effects except the group look-up.

Implements rules 4 and 5 of docs/architecture.md: only verified attributes grant rights (`checks` refuses other rules),
and a job that may publish into a scope is not seeded from a less trusted one.
"""

from __future__ import annotations

from warmstart import request
from warmstart.host.wire import Json
from warmstart.job import Job
from warmstart.lean import TYPE_CHECKING, Callable, NamedTuple, Sequence, fnmatchcase
from warmstart.policy.keys import Match, Policy, PrivateRepository, Rule
from warmstart.slurm import nodes

if TYPE_CHECKING:
    Groups = Callable[[], Sequence[str | None]]

SCOPES = ("user", "account", "site")  # from the narrowest to the widest
NO_RULE = "no rule matches it on this node"  # so it is left alone, whatever it asks for
OBSERVE = "observe"
_MOST_TOLD = 8  # patterns of a condition that does not hold; of a host list there may be thousands
_PLAIN = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-")


class Matched(NamedTuple):
    """One rule, whether it applies to the job, and why."""

    rule: Rule
    matched: bool
    reason: str  # values in it are quoted as ASCII
    # The node lacks an attribute that the rule matches on: the rule grants nothing, but restricts.
    unknown: bool = False


class Grant(NamedTuple):
    """What the rules grant a job."""

    images: list[str]
    profiles: list[str]
    env: dict[str, str]
    read_scopes: list[str]  # directories of the store, the most trusted first
    publish_scope: str  # a directory of the store
    reason: str  # why the job is left alone; "" if it is not
    override: frozenset[str] = frozenset()  # variables that the user cannot override
    rules: tuple[str, ...] = ()  # names of the rules that match
    observed: bool = False  # hooks say what they would do, and touch nothing
    own: dict[str, list[Json]] = {}  # noqa: RUF012 - what wings read of the rules that match, by key, in their order
    cache: str = ""  # the fact `cache` of its namespaces: a name that the job gives, "" if it gives none


def matching(policy: Policy, job: Job, groups: Groups) -> list[Matched]:
    """Match every rule of the policy, in order.

    `groups` returns the names of the user's groups from this node's NSS, and None if it may lack some. It is called at
    most once, and only if a rule needs it.
    """
    known: list[Sequence[str | None]] = []

    def once() -> Sequence[str | None]:
        if not known:
            known.append(groups())
        return known[0]

    return [_match(rule, job, once, bool(policy.doubt) and _grants_rights(rule)) for rule in policy.rules]


def combine(policy: Policy, matches: Sequence[Matched], job: Job) -> Grant:
    """Combine the matching rules into a grant. Later rules add to earlier ones and override their single values."""
    rules = [match.rule for match in matches if match.matched]
    if reason := _exclusion(policy, job) or ("" if rules else NO_RULE):
        return Grant([], [], {}, [], "", reason, observed=is_observed(policy, matches, job))
    scope, narrowed = _scope(matches)
    read, publish = _scopes(policy, () if narrowed else rules, scope, job)
    return Grant(
        images=list(dict.fromkeys(image for rule in rules for image in rule.images)),
        profiles=list(dict.fromkeys(profile for rule in rules for profile in rule.profiles)),
        env={name: value for rule in rules for name, value in rule.env.items()},
        read_scopes=read,
        publish_scope=publish,
        reason="",
        override=frozenset(name for rule in rules for name in rule.override),
        rules=tuple(rule.name for rule in rules),
        observed=is_observed(policy, matches, job),
        own=_own(rules),
    )


def parted(job: Job, grant: Grant, name: str) -> Grant:
    """Return the grant of a job that has given its caches a name: its user's own scope alone; "" changes nothing."""
    if not name or grant.reason:
        return grant
    own = scope_key("user", job)
    return grant._replace(read_scopes=[own], publish_scope=own, cache=name)


def _own(rules: Sequence[Rule]) -> dict[str, list[Json]]:
    found: dict[str, list[Json]] = {}
    for rule in rules:
        for key, value in rule.own.items():
            found.setdefault(key, []).append(value)
    return found


def is_observed(policy: Policy, matches: Sequence[Matched], job: Job) -> bool:
    """Return whether the last rule with a mode says so; a rule with `unknown` attributes counts only if it does.

    All nodes of a job find the same: a rule that matches `node` counts for jobs of one node.
    """
    mode, is_alone = policy.mode, not nodes.has_several(job.nodelist)
    for match in matches:
        counts = match.matched or (match.unknown and match.rule.mode == OBSERVE)
        if match.rule.mode and counts and (is_alone or not names_nodes(match.rule)):
            mode = match.rule.mode
    return mode == OBSERVE


def names_nodes(rule: Rule) -> bool:
    """Return whether the rule may match a job on one of its nodes and not on another."""
    return rule.match.node is not None


def private_repository(policy: Policy, job: Job, groups: Groups, repository: str) -> str:
    """Return the name of the policy's private repositories that include `repository` (REGISTRY/REPOSITORY).

    Returns "" if none does or the job may not read them; then the site's credentials are not used.
    """
    for item in including(policy, repository):
        conditions = (_condition(*condition, job, groups, bool(policy.doubt)) for condition in _conditions(item.match))
        if all(matched is True for matched, _ in conditions):
            return item.name
    return ""


def including(policy: Policy, repository: str) -> list[PrivateRepository]:
    """Return the policy's private repositories that include `repository` (REGISTRY/REPOSITORY)."""
    known = policy.images.credentials.repositories if policy.images.credentials else ()
    return [item for item in known if fnmatchcase(repository, item.repository)]


def scope_of(policy: Policy, scope: str, job: Job) -> str:
    """Return the store's directory for a scope, "" for the account's of a job that may have claimed its account."""
    return scope_key(scope, job) if scope != "account" or _has_account(policy, job) else ""


def scope_key(scope: str, job: Job) -> str:
    """Return the store's directory for a scope of this job. A user's has uid and name, because uids are reused."""
    if scope == "user":
        return f"user-{job.uid}-{_escaped(job.user)}"
    return f"account-{_escaped(job.account)}" if scope == "account" else "site"


def _exclusion(policy: Policy, job: Job) -> str:
    if request.wants_nothing(job):
        return "it was submitted with --no-warm" if job.no_warm else "its comment says off"
    if not job.is_allocated:
        return "srun --no-allocate started it, and Slurm runs no epilog for such a job"
    if job.uid < policy.limits.min_uid:
        return f"uid {job.uid} is below limits.min_uid ({policy.limits.min_uid})"
    for own in (policy.store_user, policy.import_user, policy.validate_user):
        if job.uid == own.uid:
            return f"uid {job.uid} is warmstart's own account {own.name}"
    return ""


def _scope(matches: Sequence[Matched]) -> tuple[str, bool]:
    """Return the last scope, and whether a rule with `unknown` attributes has narrowed it."""
    scope, narrowed = "user", False
    for match in matches:
        if match.matched and match.rule.scope:
            scope, narrowed = match.rule.scope, False
        elif match.unknown and match.rule.scope and SCOPES.index(match.rule.scope) < SCOPES.index(scope):
            scope, narrowed = match.rule.scope, True
    return scope, narrowed


def _scopes(policy: Policy, rules: Sequence[Rule], scope: str, job: Job) -> tuple[list[str], str]:
    """Return the scopes to seed from, the most trusted first, and the scope to publish into."""
    reach = {"user": ["user"], "account": ["account", "user"], "site": ["site", "account", "user"]}[scope]
    read = [name for name in reach if name != "account" or _has_account(policy, job)]
    # Only a rule with the final scope grants the right to publish into it. A later rule that narrows the scope revokes
    # the right.
    may_publish = any(
        rule.scope == scope and rule.publish is not None and (job.user, job.uid) in rule.publish.users for rule in rules
    )
    if may_publish and read[0] == scope:
        return [scope_key(scope, job)], scope_key(scope, job)
    return [scope_key(name, job) for name in read], scope_key("user", job)


def _has_account(policy: Policy, job: Job) -> bool:
    return policy.trust.account == "enforced" and not policy.doubt and job.account != ""


def _grants_rights(rule: Rule) -> bool:
    """Return whether the policy may have this rule only on verified attributes (`checks`)."""
    return rule.scope in SCOPES[1:] or bool(rule.publish or rule.own)


def _match(rule: Rule, job: Job, groups: Groups, doubted: bool) -> Matched:
    reasons = []
    unknown = False
    for attribute, globs in _conditions(rule.match):
        matched, reason = _condition(attribute, globs, job, groups, doubted)
        if matched is False:
            return Matched(rule, False, reason)
        unknown = unknown or matched is None
        reasons.append(reason)
    return Matched(rule, not unknown, "; ".join(reasons) or "is for every job", unknown)


def _conditions(match: Match) -> list[tuple[str, tuple[str, ...]]]:
    return [(attribute, globs) for attribute, globs in zip(Match._fields, match, strict=True) if globs is not None]


def _condition(
    attribute: str, globs: Sequence[str], job: Job, groups: Groups, doubted: bool
) -> tuple[bool | None, str]:
    """Return whether the condition holds (None if the node does not know the attribute), and why.

    `doubted`: the account does not count, as Slurm is not known to enforce it.
    """
    if doubted and attribute == "account":
        return None, "account is only claimed: Slurm is not known to enforce it"
    values = groups() if attribute == "group" else [getattr(job, attribute)]
    for glob in globs:
        for value in values:
            # An empty attribute matches no glob, not even "*".
            if value and fnmatchcase(value, glob):
                return True, f"{attribute} {value!a} matches {glob!a}"
    if None in values:
        return None, f"{attribute} is not known on this node"
    told = ", ".join(f"{glob!a}" for glob in globs[:_MOST_TOLD]) + (", …" if len(globs) > _MOST_TOLD else "")
    return False, f"{attribute} {', '.join(f'{value!a}' for value in values)} is not {told}"


def _escaped(name: str) -> str:
    return "".join(chr(byte) if byte in _PLAIN else f"%{byte:02X}" for byte in name.encode("utf-8", "surrogateescape"))
