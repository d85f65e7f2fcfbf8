"""The policy's `requeue`: its key, its fault, and the form that the prolog reads. Never on a warm path."""

from __future__ import annotations

from collections.abc import Iterator

from warmstart.host.wire import Json
from warmstart.policy.checks import FindUser
from warmstart.policy.document import Fault
from warmstart.policy.schema import PolicyModel, Rule, Section, key
from warmstart.wings.requeue.refused import KEY


class Requeue(Section):
    """Jobs that would fail for want of their image go back into Slurm's queue ([requeue](../wings/requeue.md)).

    `{}` switches that on.
    """

    times: int = key(3, "How often a job goes back; then it fails.", ge=1, le=100)


SECTIONS = {KEY: (Requeue | None, None)}
RULE_KEYS: dict[str, tuple[object, object]] = {}


def faults(model: PolicyModel, find_user: FindUser) -> Iterator[Fault]:  # noqa: ARG001 - the shape of all wings'
    """Yield a fault if no job fails for want of its image."""
    if _given(model) and model.on_error.image == "run-without":
        yield Fault((KEY,), "has no effect: with on_error.image: run-without no job fails for want of its image")


def rule_faults(rule: Rule, model: PolicyModel, find_user: FindUser) -> Iterator[Fault]:  # noqa: ARG001 - as above
    """Yield nothing: no key of a rule is this wing's."""
    yield from ()


def of_policy(model: PolicyModel, find_user: FindUser) -> dict[str, Json]:  # noqa: ARG001 - as above
    """Return how often a job goes back, if any does."""
    given = _given(model)
    return {KEY: given.times} if given else {}


def of_rule(rule: Rule, find_user: FindUser) -> dict[str, Json]:  # noqa: ARG001 - as above
    """Return nothing: no key of a rule is this wing's."""
    return {}


def _given(model: PolicyModel) -> Requeue | None:
    given = getattr(model, KEY)
    return given if isinstance(given, Requeue) else None
