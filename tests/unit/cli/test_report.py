"""`warmstart report`: text for a terminal, and JSON; from this host's log or a directory of logs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.lib import sample_log
from tests.lib.command_line import run
from tests.lib.node import Node
from warmstart.entry import epilog as epilog_hook
from warmstart.entry import prolog
from warmstart.paths import Installation
from warmstart.profiles.contract import USES


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("logs")
    for host, days, first in (("n1", 3, 1000), ("n2", 4, 2000)):
        (directory / host).mkdir()
        sample_log.write(directory / host / "audit.jsonl", 200, days, first)
    return str(directory)


@pytest.fixture
def nowhere(tmp_path: Path) -> Installation:
    return Installation(str(tmp_path / "prefix"))


def test_text(nowhere: Installation, logs: str) -> None:
    result = run(nowhere, "report", "--from", logs, "--since", "2026-02-01")
    assert result.exit_code == 0
    for words in ("job starts", "time saved on imports", "inductor", "alice", "prolog"):
        assert words in result.stdout
    assert result.stdout.startswith("example: 2026-02-02T")
    assert "24 nodes" in result.stdout


def test_json(nowhere: Installation, logs: str) -> None:
    result = run(nowhere, "report", "--from", logs, "--since", "2026-02-01", "--json")
    found = json.loads(result.stdout)
    assert (found["jobs"], found["clusters"]) == (400, ["example"])
    assert found["profiles"][0].keys() == {"name", *USES}


def test_a_host_reports_its_own(node: Node) -> None:
    for hook in (prolog, epilog_hook):
        assert hook.main(node.installation.prefix) == 0
    found = node.json("report", "--since", "1h")
    unused = {"name": "numba", "hit": 0, "built": 0, "unknown": 0, "untouched": 1, "around": 0}
    assert (found["jobs"], found["profiles"]) == (1, [unused])
    assert found["cold"] == {}  # it was cold, but not used


def test_nothing_in_that_time(nowhere: Installation, logs: str) -> None:
    assert run(nowhere, "report", "--from", logs, "--since", "2026-03-01").exit_code == 1
    assert run(nowhere, "report", "--from", f"{logs}/none.jsonl").exit_code == 2
