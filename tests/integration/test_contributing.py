"""The recipes of CONTRIBUTING.md work word for word: each is followed in a copy of the repository."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
RECIPES = dict(re.findall(r"^### (Add .*?)\n(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL))
BLOCK = re.compile(
    r"^ *```(?P<kind>python|diff|console) ?(?P<path>\S*)\n(?P<text>.*?)^ *```$", re.MULTILINE | re.DOTALL
)
COPIED = (
    "hooks",
    "tests/support",
    "tests/unit",
    "tools",
    "docs",
    "policies",
    "setup.cfg",
    "CONTRIBUTING.md",
)
# What the commands come to in a copy, which has neither a Makefile nor a virtual environment.
COMMANDS = {
    "make docs": f"{sys.executable} -m tools.policy_reference",
    ".venv/bin/python ": f"{sys.executable} ",
}


def test_the_recipes_are_found() -> None:
    """The patterns above read the page."""
    assert [*RECIPES] == [f"Add {what}" for what in ("a profile", "a policy key", "a doctor check")]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a copy of what the recipes touch and need."""
    for name in COPIED:
        source, target = ROOT / name, tmp_path / name
        if source.is_dir():
            shutil.copytree(source, target)  # with its __pycache__
        else:
            target.parent.mkdir(exist_ok=True)
            shutil.copy(source, target)
    return tmp_path


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_works(copy: Path, recipe: str) -> None:
    """New files are written, changes applied, commands run."""
    blocks = [(match["kind"], match["path"], dedent(match["text"])) for match in BLOCK.finditer(RECIPES[recipe])]
    assert blocks[-1][0] == "console"
    for kind, path, text in blocks:
        if kind == "console":
            for line in text.splitlines():
                run(copy, line.removeprefix("$ "))
        elif kind == "diff":
            (copy / path).write_text(applied((copy / path).read_text(), text))
        else:
            assert not (copy / path).exists()
            (copy / path).write_text(text)


def applied(text: str, diff: str) -> str:
    """Return a file's text after the hunks of a diff without line numbers; `@@` stands between hunks."""
    for hunk in diff.split("@@\n"):
        lines = [line or " " for line in hunk.splitlines()]
        before = "".join(f"{line[1:]}\n" for line in lines if line[0] in " -")
        after = "".join(f"{line[1:]}\n" for line in lines if line[0] in " +")
        assert text.count(before) == 1, f"CONTRIBUTING.md shows lines that are not there, or not once:\n{before}"
        text = text.replace(before, after)
    return text


def run(directory: Path, command: str) -> None:
    """Run one command of the page in the copy."""
    written, instead = next(item for item in COMMANDS.items() if command.startswith(item[0]))
    argv = ["/bin/bash", "-c", command.replace(written, instead, 1)]
    env = {**os.environ, "PYTHONPATH": f"{directory}/hooks:{directory}"}
    done = subprocess.run(argv, cwd=directory, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
