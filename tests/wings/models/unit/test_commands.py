"""What `warmstart plan` says of the models that a job names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.command_line import POLICY, answer, installed

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
    """And which of them are everybody's."""
    site = installed(tmp_path, SHELF + RULE + MODELS.format(way=way))
    remarks = answer(site, *JOB, "--comment", "warmstart: model=/lustre/a model=/lustre/b")["remarks"]
    reads = [f"Reads the model /lustre/{name} {how}." for name in "ab"]
    assert [text for text in remarks if "odel" in text] == [
        *reads,
        "Models at /lustre/*, of root: one copy, in site (rule all).",
    ]
