"""What a test needs of the machine. Where that is missing it is skipped; in CI, where nobody sees a skip, it fails."""

from __future__ import annotations

import importlib.util
import os
import shutil
from typing import NoReturn

import pytest


def unavailable(reason: str) -> NoReturn:
    """Skip the test; fail it in CI."""
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)


def need_module(name: str) -> None:
    """Require an importable module."""
    if importlib.util.find_spec(name) is None:
        unavailable(f"{name} is not installed")


def need_root_and_mksquashfs() -> None:
    """Require root and the program that packs bundles."""
    if os.geteuid() != 0 or not shutil.which("mksquashfs"):
        unavailable("needs root and squashfs-tools")
