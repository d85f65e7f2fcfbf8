"""What runs on GitHub: every Python that setup.cfg names, and actions that cannot change behind their names."""

from __future__ import annotations

import configparser
import re
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / ".github/workflows/ci.yml").read_text()


def test_the_unit_tests_run_with_every_python() -> None:
    """Those of setup.cfg's classifiers, for which packages are locked."""
    setup = configparser.ConfigParser(interpolation=None)
    setup.read(ROOT / "setup.cfg")
    pythons = re.findall(r"Python :: (3\.\d+)", setup["metadata"]["classifiers"])
    assert yaml.safe_load(TEXT)["jobs"]["unit"]["strategy"]["matrix"]["python"] == pythons


def test_actions_are_pinned() -> None:
    """By the hash of a commit: a tag can be moved."""
    actions = re.findall(r"uses: \S+@(.*)", TEXT)
    assert actions
    assert all(re.fullmatch(r"[0-9a-f]{40} # v[\d.]+", action) for action in actions)
