"""The wheel and the sdist: the command line in a venv of its own, for people who have no node at hand."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[3]
LOCKED = REPOSITORY / "packaging" / "requirements"
POLICY = REPOSITORY / "policies" / "site.yaml"

pytestmark = pytest.mark.sweep


def run(*argv: str | Path) -> str:
    """Run a command that does not see this checkout; return its standard output."""
    words, env = [str(word) for word in argv], {**os.environ, "PYTHONPATH": ""}
    done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=REPOSITORY, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of what `make wheel` builds."""
    directory = tmp_path_factory.mktemp("wheel")
    run("make", "-s", "wheel", f"VENV={sys.prefix}", f"PACKAGES={directory}")
    return directory


@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_a_clean_venv_has_a_working_command_line(built: Path, tmp_path: Path, kind: str) -> None:
    package = next(built.glob(kind))
    run(sys.executable, "-m", "venv", tmp_path)
    for name in ("hooks", "cli"):
        hashed = ("--require-hashes", "--only-binary=:all:", "-r", LOCKED / f"{name}.txt")
        run(tmp_path / "bin/pip", "install", "-q", *hashed)
    run(tmp_path / "bin/pip", "install", "-q", f"{package}[cli]")
    program = tmp_path / "bin/warmstart"
    assert package.name.removeprefix("warmstart-").startswith(run(program, "--version").split()[-1])
    assert run(program, "policy", "check", "--offline", POLICY).startswith("ok")
