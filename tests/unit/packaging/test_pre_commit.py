""".pre-commit-config.yaml runs what `make lint` runs."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

REPOSITORY = Path(__file__).parents[3]


def test_the_hooks_are_those_of_make_lint() -> None:
    """The same commands in the same order; only the virtual environment is written out."""
    makefile = (REPOSITORY / "Makefile").read_text()
    recipe = re.search(r"^lint:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert recipe
    commands = [
        line.strip().replace("$(BIN)", ".venv/bin").replace("$(MAKE)", "make") for line in recipe[1].splitlines()
    ]
    config = yaml.safe_load((REPOSITORY / ".pre-commit-config.yaml").read_text())
    hooks = [hook for repo in config["repos"] for hook in repo["hooks"]]
    assert [hook["entry"] for hook in hooks] == commands
    assert {(repo["repo"], hook["language"]) for repo in config["repos"] for hook in repo["hooks"]} == {
        ("local", "system")
    }
