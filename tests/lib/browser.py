"""Debian's chromium, without a window: pictures and prints of a page. It finds no host but this one."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

CHROMIUM = "/usr/bin/chromium"
DARK = "--blink-settings=preferredColorScheme=0"
LIGHT = "--blink-settings=preferredColorScheme=1"
SECONDS = 120
_ARGV = (
    CHROMIUM, "--headless=new", "--force-color-profile=srgb",
    "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",  # root's tests have no other sandbox
    "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND , EXCLUDE 127.0.0.1",
)  # fmt: skip


def screenshot(page: Path, target: Path, size: tuple[int, int], scheme: str) -> str:
    """Draw a page into a PNG of this size in pixels; return what the browser's console said."""
    return _run(page, f"--screenshot={target}", f"--window-size={size[0]},{size[1]}", "--hide-scrollbars", scheme)


def _run(page: Path, *options: str) -> str:
    with tempfile.TemporaryDirectory() as profile:
        argv = [*_ARGV, "--enable-logging=stderr", f"--user-data-dir={profile}", *options, page.as_uri()]
        ended = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=SECONDS)
        return "".join(line for line in ended.stderr.splitlines(keepends=True) if "CONSOLE" in line)
