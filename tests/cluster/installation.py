"""warmstart, or simple stand-ins for its hooks, installed where a cluster looks for them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

_REPOSITORY = Path(__file__).resolve().parents[2]


def install(prefix: Path) -> None:
    """Install this checkout with `make install`, as an admin does. Raises RuntimeError."""
    done = subprocess.run(
        ["/usr/bin/make", "-s", "install", f"PREFIX={prefix}"],
        check=False, capture_output=True, text=True, cwd=_REPOSITORY, timeout=300,
    )  # fmt: skip
    if done.returncode != 0:
        raise RuntimeError(f"make install: {done.stdout}{done.stderr}")


def write_policy(prefix: Path, text: str) -> Path:
    """Put a policy in place for the installation at `prefix`, atomically; returns its path."""
    target = prefix / "etc" / "warmstart" / "policy.yaml"
    target.parent.mkdir(parents=True, exist_ok=True)
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
