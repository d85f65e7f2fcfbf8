"""Trees that jobs may ask for, and packed copies of them, on an `Node`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.lib.node import NODE, SCOPE, Node
from tests.lib.wings.trees.values import offering
from warmstart.entry import background
from warmstart.host import process
from warmstart.wings.trees import packing, requests
from warmstart.wings.trees.requests import TreeRequest


def offer_trees(site: Node, monkeypatch: pytest.MonkeyPatch, *, most_files: int = 100) -> Path:
    """Make a tree of three names, and a policy that offers it; return its path."""
    path = site.base / "trees" / "env"
    (path / "lib").mkdir(parents=True)
    (path / "pyvenv.cfg").write_text("x")
    (path / "lib" / "empty.py").write_text("")
    if os.geteuid() == 0:
        os.chown(path, 64201, 64201)
    os.makedirs(site.paths.state, exist_ok=True)
    monkeypatch.setattr(packing, "QUIET_S", 0.0)
    monkeypatch.setattr(process, "be_idle", lambda: None)
    monkeypatch.setattr(packing, "MOST_FILES", most_files)
    site.write(offering(site.policy, path.parent))
    return path


def ask(site: Node, path: Path, marker: str = "", scope: str = SCOPE, job: int = 7) -> None:
    """Have a tree packed, as a prolog of a job of this account does."""
    whose = (scope, "ws-alice", os.getuid(), os.getgid())
    assert requests.ask(site.paths, TreeRequest(str(path), marker, *whose, "test", job, NODE))


def packs(site: Node) -> int:
    """Pack what was asked for; return the program's status."""
    return background.main(str(site.base), [requests.PACKS.name, NODE])
