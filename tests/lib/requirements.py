"""Requirements of tests. If one is missing the test is skipped; in CI, where skips go unnoticed, it fails."""

from __future__ import annotations

import importlib.util
import os
import shutil
from typing import NoReturn

import pytest


def unavailable(reason: str) -> NoReturn:
    """Skip the test, or fail it in CI."""
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
