"""Fixtures that unit tests of several folders share."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.lib.node import Node
from tests.lib.runs import a_context
from warmstart.steps.contract import Context


@pytest.fixture
def context(tmp_path: Path) -> Context:
    """Give a context below the test's directory."""
    return a_context(tmp_path)


@pytest.fixture
def programs() -> Iterator[Path]:
    """Give a directory for programs that a policy names: it may name none below /tmp."""
    with TemporaryDirectory(prefix="warmstart-", dir="/var/tmp") as directory:
        yield Path(directory)


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Node]:
    """Give an installation whose accounts are all ours; hooks set the umask of their process, which is this one."""
    before = os.umask(0o022)
    yield Node(tmp_path, as_me=monkeypatch)
    os.umask(before)
