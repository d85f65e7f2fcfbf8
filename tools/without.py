"""Show that wings can be taken off: the project without one, or without any, builds and passes.

    python -m tools.without [--quick] WING...|all|each

Run it in the root of the repository. It copies the files that git knows into a directory of its own, removes the wing's
code, tests and page there, makes anew what is made from the code, and runs the checks of `make lint` and the unit
tests. As root, unless `--quick`, it also runs jobs on a real cluster. Its exit status is 1 if anything fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from warmstart import wing

GENERATORS = ("tools.policy_reference", "tools.documents", "tools.threats")
CHECKS = (("ruff", "check", "--quiet", "hooks", "tests", "tools"), ("mypy",), ("importlinter.cli", "lint"))
JOBS = "tests/integration/test_whole_jobs.py"
# Pages of figures, which a whole run of the tests writes: rows of tests that are gone, go.
FIGURES = ("docs/slurm-releases.md", "docs/test-results.md", "docs/reliability.md")


def main(arguments: list[str], root: Path) -> int:
    """Try the project at `root` without the wings; return the exit status."""
    there = [*wing.found()]
    quick, names = "--quick" in arguments, [name for name in arguments if name != "--quick"]
    if names == ["all"]:
        sets = [there]
    elif names == ["each"]:
        sets = [[name] for name in there]
    elif names and {*names} <= {*there}:
        sets = [names]
    else:
        sys.stderr.write(f"usage: python -m tools.without [--quick] all|each|{'|'.join(there)}\n")
        return 2
    failed = [gone for gone in sets if not _passes(root, gone, quick=quick)]
    for gone in failed:
        sys.stderr.write(f"does not pass without {', '.join(gone)}\n")
    return 1 if failed else 0


def _passes(root: Path, gone: list[str], *, quick: bool) -> bool:
    """Return whether the project without these wings passes."""
    with tempfile.TemporaryDirectory(prefix="without-", dir="/var/tmp") as directory:
        copy = Path(directory)
        copy.chmod(0o755)
        _copy(root, copy)
        for name in gone:
            _remove(copy, name)
        python = str(root / ".venv" / "bin" / "python")
        tests = ["tests/unit", *sorted(str(path.relative_to(copy)) for path in copy.glob("tests/wings/*/unit"))]
        commands = [[python, "-m", module] for module in GENERATORS]
        commands += [[python, "-m", *check] for check in CHECKS]
        commands.append([python, "-m", "pytest", "-q", "-n", str((os.cpu_count() or 1) + 1), *tests])
        if os.geteuid() == 0 and not quick:
            commands.append([python, "-m", "pytest", "-q", JOBS])
        environment = {**os.environ, "PYTHONPATH": f"{copy}/hooks:{copy}"}
        sys.stdout.write(f"without {', '.join(gone)}: in {copy}\n")
        sys.stdout.flush()
        return all(
            subprocess.run(command, cwd=copy, env=environment, check=False).returncode == 0 for command in commands
        )


def _copy(root: Path, copy: Path) -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=root, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (root / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(root / name, copy / name, follow_symlinks=False)
    (copy / ".venv").symlink_to(root / ".venv")
    if (root / ".mypy_cache").exists():
        shutil.copytree(root / ".mypy_cache", copy / ".mypy_cache")
    subprocess.run(["git", "init", "-q"], cwd=copy, check=True)
    subprocess.run(["git", "add", "-A"], cwd=copy, check=True)


def _remove(copy: Path, name: str) -> None:
    """Remove what is a wing's: its two folders, its page, and rows of figures about its tests."""
    shutil.rmtree(copy / "hooks" / "warmstart" / "wings" / name)
    shutil.rmtree(copy / "tests" / "wings" / name)
    for path in (copy / "docs" / "wings").glob(f"{name}[.-]*"):  # with the page's pictures
        path.unlink()
    for page in FIGURES:
        lines = (copy / page).read_text().splitlines(keepends=True)
        (copy / page).write_text("".join(line for line in lines if f"wings/{name}/" not in line))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path.cwd()))
