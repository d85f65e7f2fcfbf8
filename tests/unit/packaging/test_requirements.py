"""packaging/requirements locks what setup.cfg asks for, on every Python and machine it names.

Hashes do not say what they are of, so no wheel can be proved to fit a Python here: `make update-requirements` does
that. These tests compare the number of hashes with what the tags of the installed wheels ask for.
"""

from __future__ import annotations

import configparser
import importlib.metadata
import re
from itertools import product
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.tags import parse_tag
from packaging.utils import canonicalize_name

from tests.lib.locked import REQUIREMENTS, Pin, Target, locked, locked_for

REPOSITORY = Path(__file__).parents[3]
NAMES = ("hooks", "cli", "demo", "lint", "docs", "test", "tools", "torch", "lock")
HASHED = tuple(name for name in NAMES if name != "torch")
MACHINES = ("x86_64", "aarch64")


def setup_cfg() -> configparser.ConfigParser:
    """Return setup.cfg."""
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


def as_installed(pin: Pin) -> importlib.metadata.Distribution | None:
    """Return the package's metadata, if this very version of it is installed here."""
    found = next(iter(importlib.metadata.distributions(name=pin.name)), None)
    return found if found and found.version.partition("+")[0] == pin.version else None


def hashes_needed(distribution: importlib.metadata.Distribution) -> int:
    """Return how many wheels serve all targets, judged by the installed one: pure, for any Python 3, or for one."""
    text = distribution.read_text("WHEEL") or ""
    tags = [tag for line in re.findall(r"^Tag: (\S+)", text, re.MULTILINE) for tag in parse_tag(line)]
    if any(tag.platform == "any" for tag in tags):
        return 1
    one_python = all(tag.abi.startswith("cp") for tag in tags)
    return len(MACHINES) * (len(PYTHONS) if one_python else 1)


def test_every_file_is_known() -> None:
    assert {path.stem for path in REQUIREMENTS.glob("*.txt")} == set(NAMES)
    assert {"hooks", *setup_cfg()["options.extras_require"]} == {*NAMES, "slurm"}


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


@pytest.mark.parametrize("name", NAMES)
def test_what_they_need_themselves_is_locked(name: str) -> None:
    told = 0
    for target in TARGETS:
        pins = locked_for(name, target)
        for pin in pins.values():
            if distribution := as_installed(pin):
                needs = [Requirement(line) for line in distribution.requires or () if "extra ==" not in line]
                needs = [each for each in needs if target.takes(each)]
                assert [str(each) for each in needs if canonicalize_name(each.name) not in pins] == [], (target, pin)
                assert all(each.specifier.contains(pins[canonicalize_name(each.name)].version) for each in needs), pin
                told += 1
    assert told or name in {"lock", "tools", "torch"}  # these need not be installed


@pytest.mark.parametrize("name", HASHED)
def test_every_line_has_its_hashes(name: str) -> None:
    for pin in locked(name):
        assert pin.version, pin
        assert pin.hashes, pin
        assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", each) for each in pin.hashes), pin
        if not pin.requirement.marker and (distribution := as_installed(pin)):
            assert len(set(pin.hashes)) >= hashes_needed(distribution), pin.name


@pytest.mark.parametrize("name", HASHED)
def test_wheels_were_found_for_every_python(name: str) -> None:
    header = (REQUIREMENTS / f"{name}.txt").read_text().splitlines()[1]
    assert header == f"# There are wheels for Python {' '.join(PYTHONS)} on {' and '.join(MACHINES)}."


def test_torch_has_versions_alone() -> None:
    """They are constraints: with a hash, pip would ask for one of everything."""
    assert all(pin.version and not pin.hashes for pin in locked("torch"))


def test_a_package_has_one_version_in_all_files() -> None:
    for target in TARGETS:
        versions: dict[str, set[str]] = {}
        for name in NAMES:
            for package, pin in locked_for(name, target).items():
                versions.setdefault(package, set()).add(pin.version)
        assert {package: found for package, found in versions.items() if len(found) > 1} == {}, target


def test_no_file_names_an_index() -> None:
    """From where packages come is the site's matter; what they are is ours."""
    for name in NAMES:
        text = (REQUIREMENTS / f"{name}.txt").read_text()
        assert "://" not in text
        assert not re.search(r"^\s*--(?!hash)", text, re.MULTILINE)
