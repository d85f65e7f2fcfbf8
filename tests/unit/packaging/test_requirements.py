"""packaging/requirements locks what setup.cfg asks for, on every Python and machine it names."""

from __future__ import annotations

import configparser
import re
from itertools import product
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.lib.locked import REQUIREMENTS, Target, locked, locked_for

REPOSITORY = Path(__file__).parents[3]
NAMES = ("hooks", "cli", "demo", "lint", "docs", "test", "tools", "torch", "lock")
HASHED = tuple(name for name in NAMES if name != "torch")
MACHINES = ("x86_64", "aarch64")


def setup_cfg() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(REPOSITORY / "setup.cfg")
    return parser


def wanted(name: str) -> list[Requirement]:
    """Return what setup.cfg asks for under the name of a file."""
    setup = setup_cfg()
    lines = setup["options"]["install_requires"] if name == "hooks" else setup["options.extras_require"][name]
    return [Requirement(line) for line in lines.splitlines() if line]


PYTHONS = re.findall(r"Programming Language :: Python :: (3\.\d+)", setup_cfg()["metadata"]["classifiers"])
TARGETS = [Target(python, machine) for python, machine in product(PYTHONS, MACHINES)]


@pytest.mark.parametrize("name", NAMES)
def test_what_setup_cfg_asks_for_is_locked(name: str) -> None:
    """For each Python and machine: one version, and one that setup.cfg allows."""
    assert [python for python in ("3.10", "3.14") if python not in PYTHONS] == []
    for target in TARGETS:
        pins = locked_for(name, target)
        asked = [requirement for requirement in wanted(name) if target.takes(requirement)]
        assert [str(each) for each in asked if canonicalize_name(each.name) not in pins] == [], target
        for each in asked:
            assert each.specifier.contains(pins[canonicalize_name(each.name)].version), target


@pytest.mark.parametrize("name", HASHED)
def test_every_line_has_its_hashes(name: str) -> None:
    for pin in locked(name):
        assert pin.version, pin
        assert pin.hashes, pin
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", each) for each in pin.hashes), pin


def test_no_file_names_an_index() -> None:
    """From where packages come is the site's matter; what they are is ours."""
    for name in NAMES:
        text = (REQUIREMENTS / f"{name}.txt").read_text()
        assert "://" not in text
        assert not re.search(r"^\s*--(?!hash)", text, re.MULTILINE)
