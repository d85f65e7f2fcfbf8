"""A prolog takes the tree of its job's image, or waits for it; what fails there concerns no job."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.lib.runs import a_context
from warmstart import plan
from warmstart import record as records
from warmstart.errand import Errands
from warmstart.images import unpacks
from warmstart.images.choice import recipe
from warmstart.images.reference import parse
from warmstart.images.store.layout import UNPACK_S, image_name
from warmstart.images.unpacked import ImageKey, shelf_of
from warmstart.paths import NodePaths
from warmstart.steps import unpack
from warmstart.steps.contract import Context

DIGEST = "sha256:" + "ab" * 32
OPTIONS = unpack.Options(parse("reg.io/a:1"), "", 0.0)


@pytest.fixture
def context(tmp_path: Path) -> Context:
    """Return the context of a job whose image is in the store."""
    context = a_context(tmp_path)
    paths = NodePaths(f"{tmp_path}/n1", "/nowhere")
    os.makedirs(f"{paths.state}/7", mode=0o700)
    (tmp_path / "shelf").mkdir()
    policy = context.policy._replace(paths=context.policy.paths._replace(shelf=f"{tmp_path}/shelf"))
    return context._replace(paths=paths, policy=policy, record=context.record._replace(image=DIGEST))


def tree(context: Context, private: str = "") -> ImageKey:
    kind = f"{os.uname().machine}.{recipe(context.policy.images.importer)}"
    key = ImageKey(image_name(DIGEST, kind), private)
    os.makedirs(f"{shelf_of(context.policy, context.record.node)}/{key.tree}/tree")
    return key


def test_a_tree_that_is_there_is_taken(context: Context) -> None:
    key = tree(context)
    outcome = unpack.run(context, OPTIONS)
    assert (outcome.state, outcome.detail) == ("unchanged", {"tree": key.tree})
    assert records.held(context.paths.state) == {key.tree: [7]}
    assert not os.path.exists(context.paths.errands)


def test_a_private_image_is_found_in_its_scope_alone(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tree(context, "team")
    monkeypatch.setattr(unpacks, "obtain", lambda *_: "none")
    assert unpack.run(context, OPTIONS).state == "skipped"
    assert unpack.run(context, OPTIONS._replace(private="team")).detail == {"tree": key.tree}


def test_a_prolog_waits_until_it_is_there(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Errands, "start_due", lambda _: tree(context))
    assert unpack.run(context, OPTIONS).state == "changed"


def test_what_fails_concerns_no_job(context: Context, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Errands, "start_due", lambda _: None)
    late = unpack.run(context, OPTIONS._replace(later=1e9))
    assert (late.state, late.detail) == ("skipped", {"reason": unpacks.TOO_LONG})
    Path(f"{context.policy.paths.shelf}").chmod(0o777)
    outcome = unpack.run(context, OPTIONS)
    assert (outcome.state, outcome.detail) == ("skipped", {"reason": "can be written by others and is not sticky"})


@pytest.mark.parametrize("image", ["", "claimed:reg.io/a:1"])
def test_what_is_not_in_the_store_is_not_unpacked(context: Context, image: str) -> None:
    left = context._replace(record=context.record._replace(image=image))
    assert unpack.run(left, OPTIONS).state == "skipped"
    assert os.listdir(f"{context.policy.paths.shelf}") == []


def test_its_wait_is_a_part_of_the_budget(context: Context) -> None:
    without = context.policy._replace(paths=context.policy.paths._replace(shelf=None))
    assert plan.prolog_budget(context.policy) == plan.prolog_budget(without) + UNPACK_S
