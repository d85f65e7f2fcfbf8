"""warmstart, or simple stand-ins for its hooks, installed where a cluster looks for them."""

from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

from warmstart.paths import Installation

_REPOSITORY = Path(__file__).resolve().parents[2]


def install(prefix: Path, *settings: str) -> None:
    """Install this checkout with `make install`, as an admin does, with make's `settings`. Raises RuntimeError."""
    done = subprocess.run(
        ["/usr/bin/make", "-s", "install", f"PREFIX={prefix}", *settings],
        check=False, capture_output=True, text=True, cwd=_REPOSITORY, timeout=300,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"make install: {done.stdout}{done.stderr}")


def install_once(shared: Path, prefix: Path) -> None:
    """Install this checkout; once in a test run with `make install`, then as a copy of that with another prefix.

    Args:
        shared: A directory that all processes of the run have in common.
        prefix: Where to install.

    Raises:
        RuntimeError: `make install` failed.
    """
    made, was = shared / "installed", shared / "installed.prefix"
    with (shared / "installed.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not was.exists():
            install(prefix)
            _copy(prefix, made)
            was.write_text(str(prefix))
            return
    _copy(made, prefix)
    for part in ("bin", "libexec", "share"):
        for path in (prefix / part).rglob("*"):
            if path.is_file():
                path.write_bytes(path.read_bytes().replace(was.read_bytes(), str(prefix).encode()))


def _copy(source: Path, target: Path) -> None:
    """Copy an installation, but for its state."""
    target.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.name not in {"var", "run"}:
            subprocess.run(["/bin/cp", "-a", path, target], check=True, timeout=300)


def write_policy(prefix: Path, text: str) -> Path:
    """Put a policy in place for the installation at `prefix`, atomically; returns its path.

    A file with this text stays as it is: no hook compiles it again.
    """
    target = Path(Installation(str(prefix)).policy)
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.exists() and target.read_text() == text:
        return target
    fresh = target.with_suffix(".new")
    fresh.write_text(text)
    fresh.chmod(0o644)
    os.replace(fresh, target)
    return target


def write_hook(prefix: Path, name: str, body: str) -> None:
    """Put a POSIX-sh stand-in for the hook `name` (prolog, epilog, task-prolog) in place."""
    target = prefix / "libexec" / "warmstart" / name
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_suffix(".new")
    fresh.write_text(f"#!/bin/sh\n{body}\n")
    fresh.chmod(0o755)
    os.replace(fresh, target)
