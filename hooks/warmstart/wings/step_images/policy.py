"""The policy's `step_images`: its key, and the form that the importer reads. Never on a warm path."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from warmstart.host.wire import Json
from warmstart.policy.checks import FindUser
from warmstart.policy.document import Fault
from warmstart.policy.schema import PolicyModel, Rule, Section, key
from warmstart.wings.step_images.place import KEY


class StepImages(Section):
    """What a step does whose image root can't get in time ([images of steps](../wings/step_images.md))."""

    after_wait: Literal["wait", "import"] = key(
        "wait",
        "If its image is still missing after `images.wait`, a step waits on, at most as long as an import may take, "
        "or imports the image as its user and for itself alone.",
    )


SECTIONS = {KEY: StepImages}
RULE_KEYS: dict[str, tuple[object, object]] = {}


def faults(model: PolicyModel, find_user: FindUser) -> Iterator[Fault]:  # noqa: ARG001 - the shape of all wings'
    """Yield nothing: the schema says it all."""
    yield from ()


def rule_faults(rule: Rule, model: PolicyModel, find_user: FindUser) -> Iterator[Fault]:  # noqa: ARG001 - as above
    """Yield nothing: no key of a rule is this wing's."""
    yield from ()


def of_policy(model: PolicyModel, find_user: FindUser) -> dict[str, Json]:  # noqa: ARG001 - as above
    """Return what a step does after the wait, if it does not wait on."""
    given = getattr(model, KEY)
    assert isinstance(given, StepImages)
    return {} if given.after_wait == "wait" else {KEY: given.after_wait}


def of_rule(rule: Rule, find_user: FindUser) -> dict[str, Json]:  # noqa: ARG001 - as above
    """Return nothing: no key of a rule is this wing's."""
    return {}
