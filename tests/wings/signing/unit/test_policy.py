"""What the policy says of signed scopes: what is refused, and what hooks read."""

from __future__ import annotations

import pytest

from tests.support.policy_site import MINIMAL, Compile, Site, refusals
from warmstart import wing
from warmstart.policy import schema
from warmstart.wings.signing.settings import Settings, settings

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
SIGNED = f"{MINIMAL}signing: {{scopes: [site], keys: [{KEY}]}}\n"


@pytest.mark.parametrize(
    ("signing", "refusal"),
    [
        ("{scopes: [site]}", "signing.keys: needs the public keys that may sign"),
        (f"{{scopes: [user], keys: [{KEY}]}}", "signing.scopes[0]"),
        ("{scopes: [site], keys: [ssh-rsa AAAAB3NzaC1yc2E]}", "is not an Ed25519 public key"),
        (f"{{scopes: [site], keys: ['{KEY} \\\" cert-authority']}}", "is not an Ed25519 public key"),
    ],
)
def test_a_signed_scope_needs_keys(site: Site, signing: str, refusal: str) -> None:
    """Of a kind that ssh-keygen knows; nothing else gets into a line of its file."""
    assert refusal in refusals(site, f"{MINIMAL}signing: {signing}\n")[0]


def test_nobody_publishes_into_a_signed_scope(site: Site, compiled_of: Compile) -> None:
    """An administrator promotes; the same rule is right for a scope that is not signed."""
    rules = "rules: [{name: r, scope: site, publish: {users: [svc_ci]}, match: {partition: ci}}]\n"
    (refusal,) = refusals(site, SIGNED + rules)
    assert "scope site is signed" in refusal
    compiled_of(f"{MINIMAL}signing: {{scopes: [account], keys: [{KEY}]}}\n{rules}")


def test_jobs_that_would_be_seeded_from_nothing_are_refused(site: Site) -> None:
    """A rule that takes from signed scopes alone needs one."""
    (refusal,) = refusals(site, f"{MINIMAL}rules: [{{name: r, signed_only: true}}]\n")
    assert "rules[0].signed_only: needs signing.scopes" in refusal


def test_what_hooks_read(compiled_of: Compile) -> None:
    """The core reads who guards what, and which rules restrict; the wing its scopes and keys."""
    policy = compiled_of(f"{SIGNED}rules: [{{name: a, signed_only: true}}, {{name: b}}]\n")
    assert (policy.guards, settings(policy)) == ({"site": "signing"}, Settings(["site"], [KEY]))
    assert [(rule.guarded_only, rule.own) for rule in policy.rules] == [(True, {}), (False, {})]
    bare = compiled_of(f"{MINIMAL}signing: {{keys: [{KEY}]}}\n")
    assert (bare.guards, settings(bare), bare.own) == ({}, Settings(), {})
    assert [known.used for known in bare.wings if known.name == "signing"] == [False]


@pytest.mark.parametrize("text", [SIGNED, f"{MINIMAL}rules: [{{name: a, signed_only: true}}]\n"])
def test_without_the_wing_the_policy_is_refused(site: Site, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """Never read as if nothing had to be signed."""
    parts = [part for part in wing.with_part("policy") if not part.startswith("signing.")]
    monkeypatch.setattr(wing, "with_part", lambda part: parts if part == "policy" else [])
    schema.whole.cache_clear()
    try:
        assert "unknown key" in refusals(site, text)[0]
    finally:
        schema.whole.cache_clear()


@pytest.mark.parametrize(
    ("scope", "wanted"), [("site", True), ("account-x", False), ("user-1-site", False), ("sites", False)]
)
def test_which_scopes_are_signed(compiled_of: Compile, scope: str, wanted: bool) -> None:
    """By the kind of the scope: for the wing, and for the core."""
    policy = compiled_of(SIGNED)
    assert (settings(policy).has(scope), policy.is_guarded(scope)) == (wanted, wanted)
