"""When a policy uses the wing: where nodes keep unpacked images. It has no keys of its own. Never on a warm path."""

from __future__ import annotations

from collections.abc import Iterator

from warmstart.host.wire import Json
from warmstart.policy.checks import FindUser
from warmstart.policy.document import Fault
from warmstart.policy.schema import PolicyModel, Rule, Section

KEY = "ready_roots"
SECTIONS: dict[str, type[Section]] = {}
RULE_KEYS: dict[str, tuple[object, object]] = {}


def faults(model: PolicyModel, find_user: FindUser) -> Iterator[Fault]:  # noqa: ARG001 - the shape of all wings'
    """Yield nothing: there are no keys."""
    yield from ()


def rule_faults(rule: Rule, model: PolicyModel, find_user: FindUser) -> Iterator[Fault]:  # noqa: ARG001 - as above
    """Yield nothing, likewise."""
    yield from ()


def of_policy(model: PolicyModel, find_user: FindUser) -> dict[str, Json]:  # noqa: ARG001 - as above
    """Say that the wing is used, if nodes keep unpacked images."""
    return {KEY: True} if model.paths.shelf else {}


def of_rule(rule: Rule, find_user: FindUser) -> dict[str, Json]:  # noqa: ARG001 - as above
    """Return nothing."""
    return {}
