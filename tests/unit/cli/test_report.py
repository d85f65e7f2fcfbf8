"""`warmstart report`: text for a terminal, JSON, and a page; from this host's log or a directory of logs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import sample_log
from tests.support.command_line import run
from tests.support.entry_site import EntrySite
from warmstart.entry import epilog, prolog
from warmstart.paths import Installation


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a directory with the logs of two hosts."""
    directory = tmp_path_factory.mktemp("logs")
    for host, days, first in (("n1", 3, 1000), ("n2", 4, 2000)):
        (directory / host).mkdir()
        sample_log.write(directory / host / "audit.jsonl", 200, days, first)
    return str(directory)


@pytest.fixture
def nowhere(tmp_path: Path) -> Installation:
    """Return an installation without a policy."""
    return Installation(str(tmp_path / "prefix"))


def test_text(nowhere: Installation, logs: str) -> None:
    """Each section has its table; nothing is wider than a terminal."""
    result = run(nowhere, "report", "--from", logs, "--since", "2026-02-01")
    assert result.exit_code == 0
    for words in ("job starts", "time saved on imports", "inductor", "alice", "prolog", "base/pytorch:2.9"):
        assert words in result.stdout
    assert result.stdout.startswith("example: 2026-02-02T")
    assert "24 nodes" in result.stdout


def test_json(nowhere: Installation, logs: str) -> None:
    """The same numbers, by name."""
    result = run(nowhere, "report", "--from", logs, "--since", "2026-02-01", "--json")
    found = json.loads(result.stdout)
    assert (found["jobs"], found["clusters"]) == (400, ["example"])
    assert found["profiles"][0].keys() == {"name", "hit", "built", "unknown", "untouched"}
    assert [day["start"] for day in found["periods"]][:3] == ["2026-02-02", "2026-02-03", "2026-02-04"]


def test_a_day_is_shown_by_the_hour(nowhere: Installation, logs: str) -> None:
    """A single column would say nothing."""
    options = ("--from", logs, "--since", "2026-02-03", "--until", "2026-02-03T23:59", "--json")
    starts = [hour["start"] for hour in json.loads(run(nowhere, "report", *options).stdout)["periods"]]
    assert starts[0] == "2026-02-03T00"
    assert len(starts) == 24


def test_observed_jobs_are_told_what_enforcing_would_bring(nowhere: Installation, tmp_path: Path) -> None:
    """As text, in JSON and on the page; where there are none nothing is said of them."""
    log = tmp_path / "audit.jsonl"
    known = {"cluster": "c", "node": "n1", "hook": "prolog", "run_id": "r", "ts": "2026-02-03T10:00:00.000Z"}
    seen = {"event": "image.observed", "image": "a", "found": False, "head": True, **known}
    cold = {
        "event": "cache.observed",
        "profile": "numba",
        "namespace": "n",
        "scopes": ["user-1-a"],
        "entries": 0,
        **known,
    }
    jobs = [{**line, "job_id": job} for job in (1, 2) for line in (seen, cold, {"event": "job.observed", **known})]
    log.write_text("".join(f"{json.dumps(line)}\n" for line in jobs))
    options = ("report", "--from", str(log), "--since", "2026-02-01")
    shown = run(nowhere, *options).stdout
    for words in ("if they were enforced", "imports avoided", "numba: warm, if used", "0 of 2"):
        assert words in shown
    found = json.loads(run(nowhere, *options, "--json").stdout)
    assert (found["jobs"], found["observed"]["jobs"], found["observed"]["imports"]) == (0, 2, 1)
    assert run(nowhere, *options, "--html", str(tmp_path / "page.html")).exit_code == 0
    assert "If observed jobs were enforced" in (tmp_path / "page.html").read_text()


def test_trees_are_told_where_jobs_asked_for_some(nowhere: Installation, tmp_path: Path) -> None:
    """As text and on the page: how many read a copy, and why others did not; no time saved."""
    log = tmp_path / "audit.jsonl"
    known = {"cluster": "c", "node": "n1", "hook": "prolog", "ts": "2026-02-03T10:00:00.000Z"}
    lines: list[dict[str, object]] = []
    copy: dict[str, object] = {"way": "copy", "files": 30000, "bytes": 4096}
    for job, shown in ((1, copy), (2, {"way": "itself", "reason": "no-copy"})):
        own: dict[str, object] = {**known, "run_id": f"r{job}", "job_id": job}
        lines += [{**own, "event": "job.planned", "head": True}, {**own, "event": "tree.shown", "tree": "/t", **shown}]
    packed = {**known, "hook": "background", "run_id": "b", "event": "tree.packed", "size": 4096, "job_id": 2}
    log.write_text("".join(f"{json.dumps(line)}\n" for line in [*lines, packed]))
    options = ("report", "--from", str(log), "--since", "2026-02-01")
    shown_text = run(nowhere, *options).stdout
    for words in ("of 2 jobs with a tree; 30,000 files and 4KiB", "trees packed", "BECAUSE", "no-copy"):
        assert words in shown_text
    assert json.loads(run(nowhere, *options, "--json").stdout)["trees"]["copies"] == 1
    assert run(nowhere, *options, "--html", str(tmp_path / "page.html")).exit_code == 0
    assert "Trees read from the shared file system" in (tmp_path / "page.html").read_text()


def test_nothing_is_said_of_observing_where_nothing_was_observed(nowhere: Installation, logs: str) -> None:
    """The usual report."""
    options = ("report", "--from", logs, "--since", "2026-02-01")
    assert "enforced" not in run(nowhere, *options).stdout
    assert json.loads(run(nowhere, *options, "--json").stdout)["observed"] is None


def test_a_page(nowhere: Installation, logs: str, tmp_path: Path) -> None:
    """One file; one that can't be written is status 2."""
    path = tmp_path / "report.html"
    result = run(nowhere, "report", "--from", logs, "--since", "2026-02-01", "--html", str(path))
    assert (result.exit_code, f"wrote {path}" in result.stdout) == (0, True)
    assert path.read_text().startswith("<!DOCTYPE html>")
    failed = run(nowhere, "report", "--from", logs, "--since", "2026-02-01", "--html", f"{tmp_path}/no/report.html")
    assert (failed.exit_code, "No such file" in failed.stderr) == (2, True)


def test_a_host_reports_its_own(entry_site: EntrySite) -> None:
    """What is still in journals, too."""
    for hook in (prolog, epilog):
        assert hook.main(entry_site.installation.prefix) == 0
    found = entry_site.json("report", "--since", "1h")
    unused = {"name": "numba", "hit": 0, "built": 0, "unknown": 0, "untouched": 1}
    assert (found["jobs"], found["profiles"]) == (1, [unused])
    assert found["cold_by_user"][0]["why"] == [{"name": "nothing-published", "times": 1}]


def test_nothing_in_that_time(nowhere: Installation, logs: str) -> None:
    """Is status 1; a log that is not there 2."""
    assert run(nowhere, "report", "--from", logs, "--since", "2026-03-01").exit_code == 1
    assert run(nowhere, "report", "--from", f"{logs}/none.jsonl").exit_code == 2
