"""What runs on GitHub: every Python that setup.cfg names, and actions that cannot change behind their names."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
WORKFLOWS = {path.stem: path.read_text() for path in (ROOT / ".github/workflows").iterdir()}


def test_the_unit_tests_run_with_every_python() -> None:
    """Those of setup.cfg's classifiers, for which packages are locked."""
    setup = configparser.ConfigParser(interpolation=None)
    setup.read(ROOT / "setup.cfg")
    pythons = re.findall(r"Python :: (3\.\d+)", setup["metadata"]["classifiers"])
    assert yaml.safe_load(WORKFLOWS["ci"])["jobs"]["unit"]["strategy"]["matrix"]["python"] == pythons


@pytest.mark.parametrize("name", WORKFLOWS)
def test_actions_are_pinned(name: str) -> None:
    """By the hash of a commit: a tag can be moved."""
    actions = re.findall(r"uses: \S+@(.*)", WORKFLOWS[name])
    assert actions
    assert all(re.fullmatch(r"[0-9a-f]{40} # v[\d.]+", action) for action in actions)


def test_each_package_is_tried_where_it_was_built() -> None:
    """The names of artifacts go by the place in the matrix, so the two matrices are one."""
    package, works = (yaml.safe_load(WORKFLOWS["release"])["jobs"][job] for job in ("package", "works"))
    assert package["strategy"] == works["strategy"]
    assert works["needs"] == "package"
