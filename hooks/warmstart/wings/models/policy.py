"""The policy's `models`: keys, faults, and the form that hooks read. Never on a warm path."""

from __future__ import annotations

from collections.abc import Iterator

from warmstart.host.wire import Json
from warmstart.policy import shared_rules
from warmstart.policy.checks import FindUser, shared_prefixes
from warmstart.policy.document import Fault
from warmstart.policy.schema import Path, PolicyModel, Rule, Section, Size, key
from warmstart.policy.shared_rules import SharedDirectory
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


class SharedModel(SharedDirectory):
    """Models with one copy for many ([models](../wings/models.md#whose-copies))."""


SECTIONS = {KEY: Models}
RULE_KEYS: dict[str, tuple[object, object]] = {
    KEY: (
        list[SharedModel],
        key(
            [],
            "Models that these jobs [share](../wings/models.md#whose-copies). Several rules add up; of those that "
            "cover a model, the last one counts. `match` may use verified attributes only.",
        ),
    )
}


def faults(model: PolicyModel, find_user: FindUser) -> Iterator[Fault]:  # noqa: ARG001 - the shape of all wings'
    """Yield prefixes that are the system's, or warmstart's; that no disk is named."""
    given = _given(model)
    yield from shared_prefixes(model, KEY, given.prefixes)
    if given.prefixes and not model.paths.shelf:
        yield Fault((KEY, "prefixes"), "needs paths.shelf, the disk where copies lie")


def rule_faults(rule: Rule, model: PolicyModel, find_user: FindUser) -> Iterator[Fault]:
    """Yield faults of shared models."""
    yield from shared_rules.faults(rule, model, find_user, KEY)


def of_policy(model: PolicyModel, find_user: FindUser) -> dict[str, Json]:  # noqa: ARG001 - the shape of all wings'
    """Return the section, if jobs may name models."""
    given = _given(model)
    return {KEY: given.model_dump(mode="json")} if given.prefixes else {}


def of_rule(rule: Rule, find_user: FindUser) -> dict[str, Json]:
    """Return the models that the rule's jobs share, in the form of `shared.SharedPath`."""
    given: list[SharedModel] = getattr(rule, KEY)
    shared: list[Json] = [shared_rules.form(rule, item, find_user) for item in given]
    return {KEY: shared} if shared else {}


def _given(model: PolicyModel) -> Models:
    given = getattr(model, KEY)
    assert isinstance(given, Models)
    return given
