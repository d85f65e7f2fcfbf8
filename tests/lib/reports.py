"""Figures that runs leave in build/reliability, and when they were made."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
REPORTS = ROOT / "build" / "reliability"
MEASURED = ("hooks", "packaging")


def made() -> str:
    """Return the day, and the commit of what is measured: `2026-11-22, commit 1a2b3c4`; without git the day alone."""
    day = time.strftime("%Y-%m-%d", time.gmtime())
    try:
        commit = _git("rev-parse", "--short", "HEAD")
        changed = _git("status", "--porcelain", "--", *MEASURED)
    except (FileNotFoundError, subprocess.CalledProcessError):
        return day
    return f"{day}, commit {commit}{' with changes' if changed else ''}"


def _git(*argv: str) -> str:
    done = subprocess.run(["git", "-C", ROOT, *argv], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def write_fragment(name: str, text: str) -> None:
    """Write figures below a line that says when they were made."""
    REPORTS.mkdir(parents=True, exist_ok=True)
    (REPORTS / name).write_text(f"{made()}\n{text}")
