"""`warmstart report`: text for a terminal, and JSON; from this host's log or a directory of logs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.lib import sample_log
from tests.lib.command_line import run
from tests.lib.hook_lines import epilog
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
    for words in ("job starts", "time saved on imports", "inductor", "alice", "prolog", "base/pytorch:2.9"):
        assert words in result.stdout
    assert result.stdout.startswith("example: 2026-02-02T")
    assert "24 nodes" in result.stdout


def test_json(nowhere: Installation, logs: str) -> None:
    result = run(nowhere, "report", "--from", logs, "--since", "2026-02-01", "--json")
    found = json.loads(result.stdout)
    assert (found["jobs"], found["clusters"]) == (400, ["example"])
    assert found["profiles"][0].keys() == {"name", *USES}
    assert [day["start"] for day in found["periods"]][:3] == ["2026-02-02", "2026-02-03", "2026-02-04"]


@pytest.mark.report
@pytest.mark.xfail(strict=True, raises=AssertionError, reason="the time from the first file to the last counts")
def test_what_cannot_be_known_is_no_figure(nowhere: Installation, tmp_path: Path) -> None:
    """A job compiles for seven seconds, and writes its files within four milliseconds of these; eight others hit."""
    built = {"use": "built", "entries": 2, "seeded": 0, "building_ms": 4.0}
    lines = [epilog(caches={"numba": item}) for item in [built, *[{"use": "hit", "seeded": 2}] * 8]]
    log = tmp_path / "audit.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    told = run(nowhere, "report", "--from", str(log), "--since", "2026-01-01").stdout
    (row,) = re.findall(r"compiling saved +(\S+) +(.*)", told)
    assert row == ("-", "8 hits; 8 without an estimate")


def test_a_host_reports_its_own(node: Node) -> None:
    for hook in (prolog, epilog_hook):
        assert hook.main(node.installation.prefix) == 0
    found = node.json("report", "--since", "1h")
    unused = {"name": "numba", "hit": 0, "built": 0, "unknown": 0, "untouched": 1, "around": 0}
    assert (found["jobs"], found["profiles"]) == (1, [unused])
    assert found["cold"] == [{"name": "ws-alice: nothing-published", "times": 1}]


def test_nothing_in_that_time(nowhere: Installation, logs: str) -> None:
    assert run(nowhere, "report", "--from", logs, "--since", "2026-03-01").exit_code == 1
    assert run(nowhere, "report", "--from", f"{logs}/none.jsonl").exit_code == 2
