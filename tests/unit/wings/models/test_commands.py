"""What `warmstart plan` says of the models that a job names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lib.command_line import POLICY, answer, installed

JOB = ("plan", "--user", "nobody")
SHELF = POLICY.replace("paths: {", "paths: {shelf: /local, ")
MODELS = """\
constant_path: {way}
models: {{prefixes: [/lustre]}}
"""
RULE = "  - {name: all, models: [{path: /lustre/*, owners: [root], scope: site}]}\n"


@pytest.mark.parametrize(
    ("way", "how"),
    [("spank", "from copies on its node, if there are any"), ("link", "as it is: this node shows no copies")],
)
def test_a_plan_says_how_models_are_read(tmp_path: Path, way: str, how: str) -> None:
    site = installed(tmp_path, SHELF + RULE + MODELS.format(way=way))
    remarks = answer(site, *JOB, "--comment", "warmstart: model=/lustre/a model=/lustre/b")["remarks"]
    reads = [f"Reads the model /lustre/{name} {how}." for name in "ab"]
    assert [text for text in remarks if "odel" in text] == [
        *reads,
        "Models at /lustre/*, of root: one copy, in site (rule all).",
    ]


@pytest.mark.report
@pytest.mark.parametrize("word", ["model=meta-llama/Llama-3-8B", "model=s3://bucket/llama", "model=/lustre/../etc"])
def test_a_plan_says_what_a_path_is(tmp_path: Path, word: str) -> None:
    """As the job would be told: users write a model's name on its hub."""
    site = installed(tmp_path, SHELF + MODELS.format(way="spank"))
    plan = answer(site, *JOB, "--comment", f"warmstart: {word}")
    assert plan["verdict"]["code"] == "request-path-invalid"
    assert "a path begins with /" in plan["verdict"]["reason"]


@pytest.mark.report
def test_a_plan_says_no_below_no_prefix(tmp_path: Path) -> None:
    site = installed(tmp_path, SHELF + MODELS.format(way="spank"))
    remarks = answer(site, *JOB, "--comment", "warmstart: model=/home/alice/llama")["remarks"]
    assert "Reads the model /home/alice/llama as it is: it is below none of models.prefixes." in remarks
