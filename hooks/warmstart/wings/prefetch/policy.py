"""The policy's `prefetch`: its keys, their faults, and the form that the command reads. Never on a warm path."""

from __future__ import annotations

from collections.abc import Iterator

from warmstart.host.wire import Json
from warmstart.policy.checks import FindUser, not_allowed
from warmstart.policy.document import Fault
from warmstart.policy.schema import PolicyModel, Reference, Rule, Section, key
from warmstart.wings.prefetch.work import KEY


class Prefetch(Section):
    """Images that are imported before any job asks for them ([prefetch](../wings/prefetch.md))."""

    images: list[Reference] = key([], "Images that `warmstart prefetch` keeps in the store. They count in no quota.")


SECTIONS = {KEY: Prefetch}
RULE_KEYS: dict[str, tuple[object, object]] = {}


def faults(model: PolicyModel, find_user: FindUser) -> Iterator[Fault]:  # noqa: ARG001 - the shape of all wings'
    """Yield the images that are of no registry of the policy."""
    for number, problem in not_allowed(_given(model).images, model):
        yield Fault((KEY, "images", number), problem)


def rule_faults(rule: Rule, model: PolicyModel, find_user: FindUser) -> Iterator[Fault]:  # noqa: ARG001 - as above
    """Yield nothing: no key of a rule is this wing's."""
    yield from ()


def of_policy(model: PolicyModel, find_user: FindUser) -> dict[str, Json]:  # noqa: ARG001 - as above
    """Return the images, if there are any."""
    images = _given(model).images
    return {KEY: images} if images else {}


def of_rule(rule: Rule, find_user: FindUser) -> dict[str, Json]:  # noqa: ARG001 - as above
    """Return nothing: no key of a rule is this wing's."""
    return {}


def _given(model: PolicyModel) -> Prefetch:
    given = getattr(model, KEY)
    assert isinstance(given, Prefetch)
    return given
