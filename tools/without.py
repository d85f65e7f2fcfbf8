"""Show that wings can be taken off: the project without one, or without any, builds and passes.

    python -m tools.without [--quick] WING...|all|each

Run it in the root of the repository. It copies the files that git knows into a directory of its own, removes the wing's
code, tests and page there, makes anew what is made from the code, and runs the checks of `make lint` and the unit
tests. A policy with a key of the wing has to be refused there. As root, unless `--quick`, it also runs jobs on a real
cluster. Its exit status is 1 if anything fails.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from warmstart import wing

# Command lines of Python, `-m MODULE ARGUMENT…`.
GENERATORS = (("tools.policy_reference",),)
CONTRACTS = ("importlinter.cli", "lint")
LINT = (("ruff", "check", "--quiet", "hooks", "tests", "tools"), ("mypy",), CONTRACTS)
PYTEST = ("pytest", "-q")
JOBS = (*PYTEST, "tests/slurm/test_several_nodes.py")
POLICY = """\
version: 1
paths: {workspace: /w, store: /s, audit: /a/audit}
"""
_COMMAND = "from warmstart.cli import main; main()"


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
    failed = [gone for gone in sets if not passes(root, gone, jobs=os.geteuid() == 0 and not quick)]
    for gone in failed:
        sys.stderr.write(f"does not pass without {', '.join(gone)}\n")
    return 1 if failed else 0


def passes(root: Path, gone: Sequence[str], *, jobs: bool) -> bool:
    """Return whether the project without these wings passes all of its checks and unit tests, and `jobs`."""
    with without(root, gone) as copy:
        units = [
            "tests/unit",
            *sorted(str(path.relative_to(copy.path)) for path in copy.path.glob("tests/unit/wings/*")),
        ]
        unit_tests = (*PYTEST, "-n", str((os.cpu_count() or 1) + 1), *units)
        return copy.refuses_its_keys() and copy.run(*GENERATORS, *LINT, unit_tests, *([JOBS] if jobs else []))


class Copy(NamedTuple):
    """A copy of the project without some wings."""

    path: Path
    python: str
    keys: dict[str, str]  # of these wings in the policy, each with a policy that has it

    def run(self, *modules: Sequence[str]) -> bool:
        """Run Python's `-m` with each of these, until one fails; return whether none did."""
        return all(self._python(["-m", *module]).returncode == 0 for module in modules)

    def refuses_its_keys(self) -> bool:
        """Return whether a policy with a key of such a wing is refused, and the key is named."""
        for key, text in self.keys.items():
            done = self._python(["-c", _COMMAND, "policy", "check", "--offline", "-"], given=text)
            if done.returncode == 0 or f"{key}: unknown key" not in done.stdout:
                sys.stderr.write(f"a policy with {key} is not refused: {done.stdout}{done.stderr}\n")
                return False
        return True

    def _python(self, arguments: Sequence[str], given: str | None = None) -> subprocess.CompletedProcess[str]:
        ours = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
        environment = {**ours, "PYTHONPATH": f"{self.path}/hooks:{self.path}"}
        told = subprocess.PIPE if given else None
        return subprocess.run(
            [self.python, *arguments],
            cwd=self.path, env=environment, input=given, stdout=told, stderr=told, text=True, check=False,
        )  # fmt: skip


@contextmanager
def without(root: Path, gone: Sequence[str]) -> Iterator[Copy]:
    """Yield a copy of the project at `root` without these wings, for a `with`."""
    with tempfile.TemporaryDirectory(prefix="without-", dir="/var/tmp") as directory:
        path = Path(directory)
        path.chmod(0o755)
        _copy(root, path)
        keys = {key: text for name in gone for key, text in _keys(name)}
        for name in gone:
            _remove(path, name)
        sys.stdout.write(f"without {', '.join(gone)}: in {path}\n")
        sys.stdout.flush()
        yield Copy(path, str(root / ".venv" / "bin" / "python"), keys)


def _keys(name: str) -> Iterator[tuple[str, str]]:
    """Yield each key of the policy that is a wing's, and a policy that has it."""
    if wing.has(name, "policy"):
        part = wing.load(f"{name}.policy")
        yield from ((key, f"{POLICY}{key}: {{}}\n") for key in part.SECTIONS)
        yield from (
            (f"rules[0].{key}", f"{POLICY}rules: [{{name: one, {key}: {{}}}}]\n")
            for key in getattr(part.RULE_KEYS, "_fields", ())
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
    """Remove what is a wing's: its code, its tests and its page."""
    shutil.rmtree(copy / "hooks" / "warmstart" / "wings" / name)
    for tests in (copy / "tests").glob(f"*/wings/{name}"):
        shutil.rmtree(tests)
    for path in (copy / "docs" / "wings").glob(f"{name}[.-]*"):  # with the page's pictures
        path.unlink()
    # Rows that a wing's tests alone show stay on the page.
    (copy / "tests" / "unit" / "test_threats.py").unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], Path.cwd()))
