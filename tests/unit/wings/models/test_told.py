"""What doctor and `warmstart plan` say of models."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lib.command_line import POLICY, answer, installed
from tests.lib.policy_site import defaults, offering
from warmstart.doctor import prefixes
from warmstart.doctor.finding import run
from warmstart.doctor.node import Node
from warmstart.host.namespaces import Mount
from warmstart.paths import Installation
from warmstart.wings.models.checks import models


@pytest.fixture(autouse=True)
def _shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefixes, "real_path", lambda path, _: path)
    monkeypatch.setattr(prefixes, "mount_of", lambda _: Mount("lustre", "/lustre"))


def found(shelf: Path, *prefixes: str, keep: str = "1B", way: str = "spank") -> list[tuple[str, str]]:
    policy = offering(defaults(), models={"prefixes": [*prefixes], "keep": keep})
    policy = policy._replace(constant_path=way, paths=policy.paths._replace(shelf=str(shelf)))  # type: ignore[arg-type]
    return [(row.status, row.found) for row in run([models], Node(Installation(str(shelf)), policy))]


def test_what_serves_is_fine_and_nothing_is_said_without_models(tmp_path: Path) -> None:
    assert found(tmp_path, "/lustre") == [("ok", "")]
    assert found(tmp_path) == []


def test_a_node_that_shows_none_and_has_no_room(tmp_path: Path) -> None:
    """Both are said; a shelf that is not there yet lies on the disk above."""
    (way, _), (room, text) = found(tmp_path / "shelf/deep", "/lustre", keep="1048576TiB", way="link")
    assert (way, room) == ("advice", "advice")
    assert text.startswith("models.keep is 1048576TiB, and the disk of paths.shelf has")


RULE = "  - {name: all, models: [{path: /lustre/*, owners: [root], scope: site}]}\n"
OFFERS = POLICY.replace("paths: {", "paths: {shelf: /local, ") + RULE + "models: {prefixes: [/lustre]}\n"


@pytest.mark.report
@pytest.mark.parametrize(
    ("way", "words", "said"),
    [
        ("spank", "/lustre/a", "Reads the model /lustre/a from copies on its node, if there are any."),
        ("spank", "/lustre/a model=/lustre/b", "Reads the model /lustre/b from copies on its node, if there are any."),
        ("link", "/lustre/a", "Reads the model /lustre/a as it is: this node shows no copies."),
        ("link", "/lustre/a", "Models at /lustre/*, of root: one copy, in site (rule all)."),
        ("spank", "/home/a/llama", "Reads the model /home/a/llama as it is: it is below none of models.prefixes."),
        # Users write a model's name on its hub.
        ("spank", "meta-llama/Llama-3-8B", "a path begins with /"),
        ("spank", "s3://bucket/llama", "a path begins with /"),
        ("spank", "/lustre/../etc", "a path begins with /"),
    ],
)
def test_a_plan_says_how_models_are_read(tmp_path: Path, way: str, words: str, said: str) -> None:
    site = installed(tmp_path, f"{OFFERS}constant_path: {way}\n")
    plan = answer(site, "plan", "--user", "nobody", "--comment", f"warmstart: model={words}")
    assert said in str(plan["verdict"]) + str(plan["remarks"])
