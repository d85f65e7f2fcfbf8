"""The policy's `models`: keys, faults, and the form that hooks read. Never on a warm path."""

from __future__ import annotations

from collections.abc import Iterator

from warmstart.host.wire import Json
from warmstart.policy.checks import FindUser, shared_prefixes
from warmstart.policy.document import Fault
from warmstart.policy.schema import Path, PolicyModel, Rule, Section, Size, key
from warmstart.wings.models.offered import KEY


class Models(Section):
    """Directories with weights that jobs read from copies on their node ([models](../wings/models.md))."""

    prefixes: list[Path] = key(
        [],
        "Jobs may name directories below these. Write each path without links, as `realpath` shows it. Without any, "
        "jobs may name none.",
    )
    keep: Size = key("500GiB", "Copies on a node, in `paths.shelf`. A larger model is not copied.")
    rate: Size = key("200MiB", "Bytes a second that a node reads of the shared file system for copies.", ge=1 << 20)


SECTIONS: dict[str, tuple[object, object]] = {KEY: (Models, Models())}
RULE_KEYS: dict[str, tuple[object, object]] = {}


def faults(model: PolicyModel, find_user: FindUser) -> Iterator[Fault]:  # noqa: ARG001 - the shape of all wings'
    """Yield prefixes that are the system's, or warmstart's; that no disk is named."""
    given = _given(model)
    yield from shared_prefixes(model, KEY, given.prefixes)
    if given.prefixes and not model.paths.shelf:
        yield Fault((KEY, "prefixes"), "needs paths.shelf, the disk where copies lie")


def rule_faults(rule: Rule, model: PolicyModel, find_user: FindUser) -> Iterator[Fault]:  # noqa: ARG001 - the same
    """Yield nothing: rules have no key of models."""
    yield from ()


def of_policy(model: PolicyModel, find_user: FindUser) -> dict[str, Json]:  # noqa: ARG001 - the same
    """Return the section, if jobs may name models."""
    given = _given(model)
    return {KEY: given.model_dump(mode="json")} if given.prefixes else {}


def of_rule(rule: Rule, find_user: FindUser) -> dict[str, Json]:  # noqa: ARG001 - the same
    """Return nothing."""
    return {}


def _given(model: PolicyModel) -> Models:
    given = getattr(model, KEY)
    assert isinstance(given, Models)
    return given
