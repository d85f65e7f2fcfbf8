"""The policy's `ready_roots`: its keys, and the form that hooks read. Never on a warm path."""

from __future__ import annotations

from collections.abc import Iterator

from warmstart.host.wire import Json
from warmstart.policy.checks import FindUser
from warmstart.policy.document import Fault
from warmstart.policy.schema import Duration, PolicyModel, Rule, Section, key
from warmstart.wings.ready_roots.settings import KEY


class ReadyRoots(Section):
    """Containers that start from images that `paths.shelf` has unpacked ([ready roots](../wings/ready_roots.md))."""

    wait: Duration = key(
        "2m",
        "How long a job's prolog, or a step, waits until this node has unpacked its image, at most `images.wait`.",
    )


SECTIONS: dict[str, tuple[object, object]] = {KEY: (ReadyRoots, ReadyRoots())}
RULE_KEYS: dict[str, tuple[object, object]] = {}


def faults(model: PolicyModel, find_user: FindUser) -> Iterator[Fault]:  # noqa: ARG001 - the shape of all wings'
    """Yield nothing: any wait will do."""
    yield from ()


def rule_faults(rule: Rule, model: PolicyModel, find_user: FindUser) -> Iterator[Fault]:  # noqa: ARG001 - as above
    """Yield nothing: rules say nothing of it."""
    yield from ()


def of_policy(model: PolicyModel, find_user: FindUser) -> dict[str, Json]:  # noqa: ARG001 - as above
    """Return the section, if nodes keep unpacked images."""
    given = getattr(model, KEY)
    assert isinstance(given, ReadyRoots)
    return {KEY: {"wait": given.wait}} if model.paths.shelf else {}


def of_rule(rule: Rule, find_user: FindUser) -> dict[str, Json]:  # noqa: ARG001 - as above
    """Return nothing."""
    return {}
