"""What `warmstart plan` says of the models that a job names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.lib.command_line import POLICY, answer, installed

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
