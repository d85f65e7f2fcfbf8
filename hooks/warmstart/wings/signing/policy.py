"""The policy's `signing`, and `signed_only` of rules: keys, faults, what hooks read. Never on a warm path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from warmstart.host.wire import Json
from warmstart.policy.checks import FindUser
from warmstart.policy.document import Fault
from warmstart.policy.schema import PolicyModel, Rule, Section, in_schema, key, matching
from warmstart.wings.signing.settings import KEY
from warmstart.wings.signing.wing import WING

# Ends up in a file of ssh-keygen's, so no quotes; the comment is the admin's.
PUBLIC_KEY = r"(ssh-ed25519|sk-ssh-ed25519@openssh\.com) AAAA[A-Za-z0-9+/]{40,400}={0,2}( [A-Za-z0-9_.@ -]{1,100})?"
PublicKey = Annotated[
    str,
    matching(PUBLIC_KEY, "an Ed25519 public key: `ssh-ed25519 AAAA…`, or `sk-ssh-ed25519@openssh.com AAAA…`"),
    in_schema("public key", PUBLIC_KEY),
]


class Signing(Section):
    """Scopes of which nodes take only what a signed list names ([signed scopes](../wings/signing.md))."""

    scopes: list[Literal["account", "site"]] = key(
        [],
        "The scopes. Nobody's jobs publish there: `warmstart signing promote` does. `account`: every account's scope.",
    )
    keys: list[PublicKey] = key(
        [], "Public keys that may sign such a list, as in OpenSSH's `*.pub`: any one of them is enough."
    )


SECTIONS: dict[str, tuple[object, object]] = {KEY: (Signing, Signing())}
RULE_KEYS: dict[str, tuple[object, object]] = {
    WING.guarded_only: (
        bool,
        key(
            False,
            "Seed these jobs from the scopes of `signing.scopes` alone, not from their own user's, which root on any "
            "node can write. One matching rule is enough.",
        ),
    )
}


def faults(model: PolicyModel, find_user: FindUser) -> Iterator[Fault]:  # noqa: ARG001 - the shape of all wings'
    """Yield a fault if nobody could sign."""
    if _given(model).scopes and not _given(model).keys:
        yield Fault((KEY, "keys"), "needs the public keys that may sign (signing.scopes)")


def rule_faults(rule: Rule, model: PolicyModel, find_user: FindUser) -> Iterator[Fault]:  # noqa: ARG001 - as above
    """Yield faults of jobs that would be seeded from nothing, and of publishers whose bundles nobody would take."""
    if _is_only(rule) and not _given(model).scopes:
        problem = "needs signing.scopes: otherwise these jobs are seeded from nothing"
        yield Fault((WING.guarded_only,), problem, at_key=True)
    if rule.publish is not None and rule.scope in _given(model).scopes:
        problem = f"scope {rule.scope} is signed (signing.scopes): jobs publish into their user's, and you promote"
        yield Fault(("publish",), problem, at_key=True)


def of_policy(model: PolicyModel, find_user: FindUser) -> dict[str, Json]:  # noqa: ARG001 - as above
    """Return the section, if any scope is signed."""
    given = _given(model)
    return {KEY: given.model_dump(mode="json")} if given.scopes else {}


def of_rule(rule: Rule, find_user: FindUser) -> dict[str, Json]:  # noqa: ARG001 - as above
    """Return whether the rule's jobs take from signed scopes alone."""
    return {WING.guarded_only: True} if _is_only(rule) else {}


def _given(model: PolicyModel) -> Signing:
    given = getattr(model, KEY)
    assert isinstance(given, Signing)
    return given


def _is_only(rule: Rule) -> bool:
    only: bool = getattr(rule, WING.guarded_only)
    return only
