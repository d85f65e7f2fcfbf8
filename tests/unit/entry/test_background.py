"""What hooks had no time for, done off the clock of jobs: what becomes of it, and who is told."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.lib.bundles import ASKER
from tests.lib.node import NODE, Node
from warmstart.entry import background
from warmstart.host import process
from warmstart.images.unpacks import UNPACKS, UnpackRequest
from warmstart.queue import Queue


@pytest.fixture(autouse=True)
def busy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "be_idle", lambda: None)


@pytest.fixture
def site(node: Node) -> Node:
    """Return an installation with a node that hooks have used."""
    for directory in (node.paths.state, node.paths.bundles):
        os.makedirs(directory, mode=0o700)
    return node


def run(site: Node, what: str = UNPACKS.name, node: str = NODE) -> int:
    return background.main(site.installation.prefix, [what, node])


def test_it_does_nothing_that_nobody_asked_for(site: Node, capsys: pytest.CaptureFixture[str]) -> None:
    queue = Queue(site.paths, UNPACKS)
    queue.add("1", "ab", UnpackRequest("reg.io/b:1", "b", "", ASKER))
    assert [run(site, "all"), run(site, node="n2"), run(site, node="../n1")] == [background.WRONG_USAGE] * 3
    assert "usage: background" in capsys.readouterr().err
    Path(site.installation.off_switch).touch()
    assert run(site) == 0
    assert [item.attempts for item in queue.all()] == [0]


def test_owners_take_turns(site: Node) -> None:
    """Who asks for much is not served before who asks for one thing, later."""
    queue, order = Queue(site.paths, UNPACKS._replace(parallel=1)), site.base / "order"
    for owner, key in [("1", "a"), ("1", "b"), ("1", "c"), ("2", "d")]:
        queue.add(owner, key, UnpackRequest("reg.io/b:1", "b", "", ASKER))
    program = Path(site.paths.background_program)
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\nprintf %s $3 >>{order}; rm {queue.directory}/*,$3\n")
    program.chmod(0o755)
    background.make_attempts(site.installation, NODE, queue.kind)
    assert order.read_text() == "adbc"
