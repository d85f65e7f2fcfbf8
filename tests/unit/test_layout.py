"""Where tests are: every module of the folders that do the work has unit tests of its own, under its own name."""

from __future__ import annotations

from pathlib import Path

import pytest

import warmstart

HOOKS = Path(warmstart.__file__).parent
UNIT = Path(__file__).parent
FOLDERS = (
    "audit",
    "cli",
    "doctor",
    "entry",
    "errands",
    "harvest",
    "maintenance",
    "policy",
    "profiles",
    "report",
    "seed",
    "steps",
    "store",
)
# Tested with what they are a part of: a finding and a probe with the doctor's checks.
TESTED_BESIDE = {
    "cli/doctor": "doctor/test_node",
    "doctor/constant_path": "doctor/test_node",
    "doctor/containers": "doctor/test_slurm",
    "doctor/finding": "doctor/test_node",
    "doctor/kernel": "doctor/test_node",
    "doctor/policy": "doctor/test_node",
    "doctor/namespaces": "doctor/test_slurm",
    "doctor/slurm_conf": "doctor/test_slurm",
    "errands/harvests": "maintenance/test_node",
}
MODULES = sorted(
    str(path.relative_to(HOOKS).with_suffix(""))
    for folder in FOLDERS
    for path in (HOOKS / folder).rglob("*.py")
    if path.stem != "__init__"
)


def named_after(module: str) -> list[Path]:
    """Return the files of tests that bear a module's name, in the folder that mirrors its own."""
    folder, _, name = module.rpartition("/")
    return sorted((UNIT / folder).glob(f"test_{name}.py")) + sorted((UNIT / folder).glob(f"test_{name}_*.py"))


@pytest.mark.parametrize("module", MODULES)
def test_a_module_has_unit_tests_of_its_own(module: str) -> None:
    """Or is named above with the file that tests it, by its name."""
    if module in TESTED_BESIDE:
        assert not named_after(module)
        assert module.replace("/", ".").rpartition(".")[2] in (UNIT / f"{TESTED_BESIDE[module]}.py").read_text()
        return
    assert any("def test_" in path.read_text() for path in named_after(module))


def test_every_exception_is_a_module() -> None:
    """One that is gone, or has tests by now, is no exception."""
    assert TESTED_BESIDE.keys() <= {*MODULES}
