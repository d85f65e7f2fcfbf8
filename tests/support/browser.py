"""Debian's chromium, without a window: pictures and prints of a page. It finds no host but this one."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

CHROMIUM = "/usr/bin/chromium"
DARK = "--blink-settings=preferredColorScheme=0"
LIGHT = "--blink-settings=preferredColorScheme=1"
SECONDS = 120


def screenshot(page: Path, target: Path, size: tuple[int, int], scheme: str) -> str:
    """Draw a page into a PNG of this size in pixels; return what the browser's console said."""
    return _run(page, f"--screenshot={target}", f"--window-size={size[0]},{size[1]}", "--hide-scrollbars", scheme)


def dom(page: Path) -> str:
    """Return the HTML of a page once its scripts have run."""
    return _ended(page, "--dump-dom", "--virtual-time-budget=5000").stdout


def pdf(page: Path, target: Path) -> str:
    """Print a page; return what the browser's console said."""
    return _run(page, f"--print-to-pdf={target}")


def _run(page: Path, *options: str) -> str:
    said = _ended(page, *options).stderr
    return "".join(line for line in said.splitlines(keepends=True) if "CONSOLE" in line)


def _ended(page: Path, *options: str) -> subprocess.CompletedProcess[str]:
    with tempfile.TemporaryDirectory() as profile:
        quiet = ("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync")
        alone = "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1"
        sandbox = ("--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage")  # root's tests have no other sandbox
        argv = [
            CHROMIUM,
            "--headless=new",
            *sandbox,
            *quiet,
            alone,
            "--force-color-profile=srgb",
            "--enable-logging=stderr",
        ]
        argv += [f"--user-data-dir={profile}", *options, page.as_uri()]
        return subprocess.run(argv, capture_output=True, text=True, check=True, timeout=SECONDS)
